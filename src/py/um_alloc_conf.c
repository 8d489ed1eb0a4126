/* Sizes as people write them ("4GiB", "80%"), and the environment variable UMEM_ALLOC_CONF, which is made of them. */
#include "py/um_alloc_conf.h"

#include <string.h>

#include "core/um_pool.h"

/* --- sizes -------------------------------------------------------------------------------------------------------- */

typedef enum size_verdict {
    SIZE_OK,
    SIZE_MALFORMED,
    SIZE_TOO_LARGE,
    SIZE_ABOVE_100, /* percent */
} size_verdict;

typedef struct size_unit {
    const char *name; /* lower case */
    uint64_t bytes;
} size_unit;

/* Decimal where the unit says so, binary with an i; a bare letter is binary, as in most tools that read one. */
static const size_unit units[] = {
    {"", 1},
    {"b", 1},
    {"k", (uint64_t)1 << 10},
    {"kb", 1000},
    {"kib", (uint64_t)1 << 10},
    {"m", (uint64_t)1 << 20},
    {"mb", 1000000},
    {"mib", (uint64_t)1 << 20},
    {"g", (uint64_t)1 << 30},
    {"gb", 1000000000},
    {"gib", (uint64_t)1 << 30},
    {"t", (uint64_t)1 << 40},
    {"tb", 1000000000000},
    {"tib", (uint64_t)1 << 40},
};

typedef struct span {
    const char *text;
    size_t length;
} span;

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static char to_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static span trim(span part) {
    while (part.length > 0 && is_space(part.text[0])) {
        part.text += 1;
        part.length -= 1;
    }
    while (part.length > 0 && is_space(part.text[part.length - 1])) {
        part.length -= 1;
    }
    return part;
}

static void advance(span *part) {
    part->text += 1;
    part->length -= 1;
}

/* Digits, with a fraction or without: "12", "1.5", "1.", ".5". Removes them from *part. */
static size_verdict read_number(span *part, uint64_t *whole, double *fraction) {
    size_t digits = 0;
    *whole = 0;
    *fraction = 0;
    for (; part->length > 0 && is_digit(part->text[0]); advance(part), ++digits) {
        uint64_t digit = (uint64_t)(part->text[0] - '0');
        if (*whole > (UINT64_MAX - digit) / 10) {
            return SIZE_TOO_LARGE;
        }
        *whole = *whole * 10 + digit;
    }
    if (part->length > 0 && part->text[0] == '.') {
        advance(part);
        double weight = 1;
        for (; part->length > 0 && is_digit(part->text[0]); advance(part), ++digits) {
            weight /= 10;
            *fraction += weight * (part->text[0] - '0');
        }
    }
    return digits > 0 ? SIZE_OK : SIZE_MALFORMED;
}

static const size_unit *find_unit(span name) {
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); ++i) {
        const char *candidate = units[i].name;
        size_t same = 0;
        while (same < name.length && candidate[same] != '\0' && candidate[same] == to_lower(name.text[same])) {
            ++same;
        }
        if (same == name.length && candidate[same] == '\0') {
            return &units[i];
        }
    }
    return NULL;
}

/* *out is rounded down. */
static size_verdict parse_span(span part, size_t total, size_t *out) {
    part = trim(part);
    uint64_t whole = 0;
    double fraction = 0;
    size_verdict verdict = read_number(&part, &whole, &fraction);
    if (verdict != SIZE_OK) {
        return verdict;
    }
    part = trim(part);
    if (part.length == 1 && part.text[0] == '%') {
        if (whole > 100 || (whole == 100 && fraction > 0)) {
            return SIZE_ABOVE_100;
        }
        *out =
            total / 100 * (size_t)whole + total % 100 * (size_t)whole / 100 + (size_t)((double)total / 100 * fraction);
        return SIZE_OK;
    }
    const size_unit *unit = find_unit(part);
    if (unit == NULL) {
        return SIZE_MALFORMED;
    }
    uint64_t below_one = (uint64_t)((double)unit->bytes * fraction);
    if (whole > (SIZE_MAX - below_one) / unit->bytes) {
        return SIZE_TOO_LARGE;
    }
    *out = (size_t)(whole * unit->bytes + below_one);
    return SIZE_OK;
}

/* What is wrong with a size, after its text. */
static const char *size_problem(size_verdict verdict) {
    switch (verdict) {
    case SIZE_TOO_LARGE: return "is a size that no address space holds";
    case SIZE_ABOVE_100: return "is more than all memory (100%)";
    case SIZE_OK:
    case SIZE_MALFORMED: break;
    }
    return "is not a size; give bytes, or a number with a unit, like 4GiB, 500 MB or 80% (kB, MB, GB, TB count in thousands; "
           "KiB, MiB, GiB, TiB and K, M, G, T in 1024s)";
}

static PyObject *to_text(span part) {
    part = trim(part);
    return PyUnicode_DecodeUTF8(part.text, (Py_ssize_t)part.length, "replace");
}

int um_parse_size(PyObject *text, const char *name, size_t total, size_t *out) {
    Py_ssize_t length = 0;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 == NULL) {
        return -1;
    }
    span part = {.text = utf8, .length = (size_t)length};
    size_t size = 0;
    size_verdict verdict = parse_span(part, total, &size);
    if (verdict != SIZE_OK) {
        PyObject *shown = to_text(part);
        if (shown != NULL) {
            PyErr_Format(PyExc_ValueError, "%s: %R %s", name, shown, size_problem(verdict));
            Py_DECREF(shown);
        }
        return -1;
    }
    *out = size;
    return 0;
}

int um_total_memory(um_state *state, um_context *ctx, int device, size_t *out) {
    um_backend *backend = um_context_backend(ctx);
    um_error err;
    um_status status = UM_OK;
    size_t total = 0;
    if (!um_context_is_cuda(ctx)) {
        size_t free_bytes = 0;
        status = backend->ops->mem_info(backend, 0, &free_bytes, &total, &err);
    }
    for (int i = 0; status == UM_OK && i < backend->device_count; ++i) {
        um_device_info info;
        if (device != UM_ALL_DEVICES && device != i) {
            continue;
        }
        status = backend->ops->device_info(backend, i, &info, &err);
        if (status == UM_OK) {
            total += info.total_memory;
        }
    }
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    *out = total;
    return 0;
}

/* --- UMEM_ALLOC_CONF: "key:value,key:value" ----------------------------------------------------------------------- */

#define VARIABLE "UMEM_ALLOC_CONF"

typedef struct setting {
    const char *key;
    int (*apply)(um_state *state, um_context *ctx, const char *key, span value); /* -1 with an exception set */
} setting;

/* "limit, gc_threshold, …"; new reference. */
static PyObject *list_keys(void);

/* Sets ValueError; `problem` goes on after the value. Always -1. */
static int refuse_value(const char *key, span value, const char *problem) {
    PyObject *keys = list_keys();
    PyObject *text = to_text(value);
    if (keys != NULL && text != NULL) {
        PyErr_Format(PyExc_ValueError, VARIABLE ": %s: %R %s; the valid keys are: %U", key, text, problem, keys);
    }
    Py_XDECREF(keys);
    Py_XDECREF(text);
    return -1;
}

/* *total is what shares are of. */
static int read_size(um_state *state, um_context *ctx, const char *key, span value, size_t *out, size_t *total) {
    if (um_total_memory(state, ctx, UM_ALL_DEVICES, total) < 0) {
        return -1;
    }
    size_verdict verdict = parse_span(value, *total, out);
    return verdict == SIZE_OK ? 0 : refuse_value(key, value, size_problem(verdict));
}

static int apply_limit(um_state *state, um_context *ctx, const char *key, span value) {
    size_t total = 0;
    size_t limit = 0;
    if (read_size(state, ctx, key, value, &limit, &total) < 0) {
        return -1;
    }
    um_pool_set_limit(ctx, UM_ALL_DEVICES, limit);
    return 0;
}

static int apply_gc_threshold(um_state *Py_UNUSED(state), um_context *ctx, const char *key, span value) {
    span part = trim(value);
    uint64_t whole = 0;
    double fraction = 0;
    size_verdict verdict = read_number(&part, &whole, &fraction);
    bool percent = part.length == 1 && part.text[0] == '%';
    double share = ((double)whole + fraction) / (percent ? 100 : 1);
    if (verdict != SIZE_OK || (part.length > 0 && !percent) || share > 1) {
        return refuse_value(key, value, "is not a share; give a number from 0 to 1, like 0.8, or 80%");
    }
    um_pool_config config;
    um_pool_get_config(ctx, &config);
    config.gc_threshold = share;
    um_pool_set_config(ctx, &config);
    return 0;
}

static int apply_slab(um_state *state, um_context *ctx, const char *key, span value) {
    um_pool_config config;
    um_pool_get_config(ctx, &config);
    size_t total = 0;
    if (read_size(state, ctx, key, value, &config.slab, &total) < 0) {
        return -1;
    }
    if (config.slab < UM_LARGE_PAGE || config.slab > total) {
        return refuse_value(key, value, "is no size for a slab; give at least 2MiB, and at most all memory (100%)");
    }
    um_pool_set_config(ctx, &config);
    return 0;
}

#define SHARED_BELOW ((size_t)64 << 10) /* smaller blocks always lie in slabs with others, unaligned */

/* A size below which arrays share pages anyway, into the field of um_pool_config at `offset`. */
static int apply_block_size(um_state *state, um_context *ctx, const char *key, span value, size_t offset) {
    um_pool_config config;
    um_pool_get_config(ctx, &config);
    size_t *size = (size_t *)((char *)&config + offset);
    size_t total = 0;
    if (read_size(state, ctx, key, value, size, &total) < 0) {
        return -1;
    }
    if (*size < SHARED_BELOW) {
        return refuse_value(
            key, value, "is too small: smaller arrays than 64KiB share memory pages in any case; give at least 64KiB");
    }
    um_pool_set_config(ctx, &config);
    return 0;
}

static int apply_large_page(um_state *state, um_context *ctx, const char *key, span value) {
    return apply_block_size(state, ctx, key, value, offsetof(um_pool_config, large_page));
}

static int apply_max_split(um_state *state, um_context *ctx, const char *key, span value) {
    return apply_block_size(state, ctx, key, value, offsetof(um_pool_config, max_split));
}

static bool span_is(span part, const char *text) {
    return strlen(text) == part.length && memcmp(text, part.text, part.length) == 0;
}

static int apply_numa(um_state *Py_UNUSED(state), um_context *ctx, const char *key, span value) {
    bool off = span_is(trim(value), "off");
    if (!off && !span_is(trim(value), "on")) {
        return refuse_value(key, value, "is neither on nor off");
    }
    um_context_backend(ctx)->numa.off = off;
    return 0;
}

static const setting settings[] = {
    {"limit", apply_limit},           {"gc_threshold", apply_gc_threshold}, {"slab", apply_slab},
    {"large_page", apply_large_page}, {"max_split", apply_max_split},       {"numa", apply_numa},
};

#define SETTING_COUNT (sizeof(settings) / sizeof(settings[0]))

static PyObject *list_keys(void) {
    PyObject *keys = PyUnicode_FromString(settings[0].key);
    for (size_t i = 1; keys != NULL && i < SETTING_COUNT; ++i) {
        PyObject *longer = PyUnicode_FromFormat("%U, %s", keys, settings[i].key);
        Py_SETREF(keys, longer);
    }
    return keys;
}

/* `advice` follows the entry, or is empty. */
static int refuse_entry(const char *problem, span entry, const char *advice) {
    PyObject *keys = list_keys();
    PyObject *text = to_text(entry);
    if (keys != NULL && text != NULL) {
        PyErr_Format(PyExc_ValueError,
                     VARIABLE ": %s %R%s; it reads \"key:value,key:value\", and the valid keys are: %U", problem, text,
                     advice, keys);
    }
    Py_XDECREF(keys);
    Py_XDECREF(text);
    return -1;
}

static int refuse_key(span key) {
    static const struct {
        const char *theirs;
        const char *advice;
    } known[] = {
        {"max_split_size_mb", ", which is PyTorch's: here it is max_split, a size like 200MiB"},
        {"garbage_collection_threshold", ", which is PyTorch's: here it is gc_threshold, a share like 0.8"},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); ++i) {
        if (span_is(key, known[i].theirs)) {
            return refuse_entry("unknown key", key, known[i].advice);
        }
    }
    return refuse_entry("unknown key", key, "");
}

static int apply_entry(um_state *state, um_context *ctx, span entry, bool *seen) {
    const char *colon = memchr(entry.text, ':', entry.length);
    if (colon == NULL) {
        return refuse_entry("a value is missing in", entry, "");
    }
    span key = trim((span){.text = entry.text, .length = (size_t)(colon - entry.text)});
    span value = {.text = colon + 1, .length = entry.length - (size_t)(colon + 1 - entry.text)};
    for (size_t i = 0; i < SETTING_COUNT; ++i) {
        if (span_is(key, settings[i].key)) {
            if (seen[i]) {
                return refuse_entry("repeated key", key, "");
            }
            seen[i] = true;
            return settings[i].apply(state, ctx, settings[i].key, value);
        }
    }
    return refuse_key(key);
}

int um_apply_alloc_conf(um_state *state, um_context *ctx) {
    char *copy = NULL; /* os.environ may be changed while an error is made */
    if (um_copy_setting(VARIABLE, &copy) < 0) {
        return -1;
    }
    bool seen[SETTING_COUNT] = {false};
    const char *text = copy;
    int result = 0;
    while (result == 0 && text != NULL && *text != '\0') {
        size_t length = strcspn(text, ",");
        span entry = trim((span){.text = text, .length = length});
        result = entry.length > 0 ? apply_entry(state, ctx, entry, seen) : 0;
        text += length + (text[length] == ',');
    }
    PyMem_Free(copy);
    return result;
}
