/* Which call fails next, and what kind of machine is imitated. */
#include "fake_internal.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- faults ---------------------------------------------------------- */

#define MAX_FAULTS 32

typedef struct fault {
    const char *symbol; /* of the call table; NULL: free line */
    unsigned long nth;  /* 1: the next call */
    CUresult code;
    bool forever;
} fault;

static fault faults[MAX_FAULTS];
static unsigned long countdown; /* calls until one of any kind fails; 0: none will */
static CUresult countdown_code;
static bool counting; /* there is or was a countdown: only the call that it fails is the last failed one */
static const char *last_failed;
static const void *last_failed_at; /* where its caller goes on */

static const char *table_symbol(const char *symbol) {
    for (int id = 0; id < FAKE_CALL_COUNT; id++) {
        if (strcmp(fake_call_symbol((fake_call_id)id), symbol) == 0) {
            return fake_call_symbol((fake_call_id)id);
        }
    }
    fake_unmodelled("fakecu_fail", "symbol %s", symbol);
}

void fakecu_fail(const char *symbol, unsigned long nth, int code, int forever) {
    if (nth == 0 || code == 0) {
        fake_unmodelled("fakecu_fail", "nth %lu, code %d", nth, code);
    }
    fake_lock();
    int line = 0;
    while (line < MAX_FAULTS && faults[line].symbol != NULL) {
        line++;
    }
    if (line == MAX_FAULTS) {
        fake_unmodelled("fakecu_fail", "more than %d faults", MAX_FAULTS);
    }
    faults[line] = (fault){table_symbol(symbol), nth, (CUresult)code, forever != 0};
    fake_unlock();
}

void fakecu_fail_nth_call(unsigned long n, int code) {
    fake_lock();
    countdown = n;
    counting = n > 0;
    countdown_code = (CUresult)code;
    fake_unlock();
}

const char *fakecu_last_failed(void) { return last_failed; }

const char *fakecu_last_failed_at(void) {
    static char text[4096 + 32];
    Dl_info object;
    if (last_failed_at == NULL || dladdr(last_failed_at, &object) == 0) {
        return NULL;
    }
    snprintf(text, sizeof text, "%s+%#tx", object.dli_fname, (const char *)last_failed_at - (char *)object.dli_fbase);
    return text;
}

void fakecu_set_sticky(int code) {
    fake_lock();
    fake.sticky = (CUresult)code;
    fake_unlock();
}

CUresult fake_fault_next(fake_call_id id, const void *from) {
    const char *symbol = fake_call_symbol(id);
    CUresult result = CUDA_SUCCESS;
    bool last = false;
    if (countdown > 0 && id != FAKE_CALL_get_error_name && id != FAKE_CALL_get_error_string && --countdown == 0) {
        result = countdown_code;
        last = true;
    }
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault *f = &faults[i];
        /* Forms of one symbol share its line of the fault list, as they share its name. */
        if (f->symbol == NULL || strcmp(f->symbol, symbol) != 0) {
            continue;
        }
        if (f->nth > 1) {
            f->nth--;
            continue;
        }
        result = f->code;
        last = last || !counting;
        if (!f->forever) {
            f->symbol = NULL;
        }
    }
    if (last) {
        last_failed = symbol;
        last_failed_at = from;
    }
    return result;
}

void fake_fault_reset(void) {
    memset(faults, 0, sizeof faults);
    countdown = 0;
    counting = false;
    last_failed = NULL;
    last_failed_at = NULL;
    fake.sticky = CUDA_SUCCESS;
}

/* --- configuration --------------------------------------------------- */

static size_t environment_bytes(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    switch (*end) {
    case 'K':
        value <<= 10;
        end++;
        break;
    case 'M':
        value <<= 20;
        end++;
        break;
    case 'G':
        value <<= 30;
        end++;
        break;
    default: break;
    }
    if (end == text || *end != '\0') {
        fake_unmodelled(name, "value %s", text);
    }
    return (size_t)value;
}

static void check_devices(const char *where, int count) {
    if (count < 0 || count > FAKE_MAX_DEVICES) {
        fake_unmodelled(where, "%d devices", count);
    }
}

void fake_config_from_environment(fake_config *config) {
    config->version = (int)environment_bytes("FAKECU_VERSION", 13000);
    config->device_count = (int)environment_bytes("FAKECU_DEVICES", 1);
    config->memory = environment_bytes("FAKECU_MEMORY", (size_t)8 << 30);
    config->host_memory = environment_bytes("FAKECU_HOST_MEMORY", (size_t)64 << 30);
    config->concurrent = environment_bytes("FAKECU_CONCURRENT", 1) != 0;
    config->managed = environment_bytes("FAKECU_MANAGED", 1) != 0;
    config->numa_nodes = (int)environment_bytes("FAKECU_NUMA_NODES", 1);
    const char *missing = getenv("FAKECU_MISSING");
    snprintf(config->missing, sizeof config->missing, "%s", missing != NULL ? missing : "");
    check_devices("FAKECU_DEVICES", config->device_count);
}

bool fake_config_lacks(const char *symbol) {
    const size_t length = strlen(symbol);
    for (const char *at = fake.config.missing; (at = strstr(at, symbol)) != NULL; at += length) {
        const bool starts = at == fake.config.missing || at[-1] == ',';
        if (starts && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static void before_init(const char *call) {
    if (fake.initialised) {
        fake_unmodelled(call, "called after cuInit (fakecu_shutdown undoes it)");
    }
}

void fakecu_set_version(int version) {
    before_init("fakecu_set_version");
    fake.config.version = version;
}

void fakecu_set_devices(int count) {
    before_init("fakecu_set_devices");
    check_devices("fakecu_set_devices", count);
    fake.config.device_count = count;
}

void fakecu_set_memory(size_t bytes_per_device) {
    before_init("fakecu_set_memory");
    fake.config.memory = bytes_per_device;
}

void fakecu_set_missing(const char *comma_separated_symbols) {
    before_init("fakecu_set_missing");
    snprintf(fake.config.missing, sizeof fake.config.missing, "%s", comma_separated_symbols);
}

void fakecu_set_concurrent(int yes) {
    before_init("fakecu_set_concurrent");
    fake.config.concurrent = yes != 0;
}

void fakecu_set_managed(int yes) {
    before_init("fakecu_set_managed");
    fake.config.managed = yes != 0;
}

void fakecu_set_managed_limit(size_t bytes) {
    fake_lock();
    fake.managed_limit = bytes;
    fake_unlock();
}

void fakecu_set_query_mode(int mode) {
    if (mode < 0 || mode > 2) {
        fake_unmodelled("fakecu_set_query_mode", "mode %d", mode);
    }
    fake_lock();
    fake.query_mode = mode;
    fake_unlock();
}
