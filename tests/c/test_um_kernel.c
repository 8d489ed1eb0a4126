/* The kernels through their launchers, over the fake driver that UMEM_CUDA_LIBRARY names: random shapes, strides and types against plain
 * loops, comparing every byte of the output's memory. Built with UM_TEST_IMAGES and the real images, it runs on a GPU too. */
#define _GNU_SOURCE 1
#include <math.h>
#include <stdlib.h>

#include "kernels/um_kernel.h"
#include "kernels/um_kernel_abi.h"
#include "kernels/um_kernel_call.h"
#include "kernels/um_kernel_functions.h"
#include "kernels/um_kernel_image.h"
#include "kernels/um_kernel_forms.h"
#include "um_fake.h"
#include "um_test.h"

#ifndef UM_TEST_IMAGES
static const unsigned char no_code[8];
const um_kernel_image um_kernel_images[] = {{"none", no_code, sizeof no_code}};
const size_t um_kernel_image_count = 1;
#endif

#define MAX_BYTES ((size_t)64 << 20) /* of one operand's memory */

static um_context *ctx;
static um_stream *stream;
static uint64_t random_state = 88172645463325252u;

#define SUM_DTYPES 4
static const um_dtype sum_dtypes[SUM_DTYPES] = {UM_FLOAT32, UM_FLOAT64, UM_INT32, UM_INT64};

static uint64_t random_bits(void) { /* xorshift64 */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() >> 1) % n; }

static bool ok(um_status status, const um_error *err) {
    if (status != UM_OK) {
        printf("%s: %s\n", um_test_name, err->message);
    }
    return status == UM_OK;
}

/* --- operands ------------------------------------------------------------------------------------------------------------------------ */

typedef struct array {
    um_operand operand; /* block NULL: an immediate */
    int64_t strides[UM_MAX_NDIM];
    size_t itemsize, size; /* bytes of an element, of the block */
    char *memory;          /* the block's; its contents before the call are in `before` */
    char *before;
    size_t offset; /* of the first element */
} array;

static void free_array(array *a) {
    if (a->operand.block != NULL) {
        um_block_unref(a->operand.block);
    }
    free(a->before);
}

/* Through int64, as every type converts from it. */
static void put_number(char *to, um_dtype dtype, int64_t number) {
    switch ((int)dtype) {
    case UM_BOOL: to[0] = number != 0; break;
    case UM_FLOAT16: memcpy(to, &(um_f16){um_cast_i64_to_f16(number).bits}, 2); break;
    case UM_FLOAT32: memcpy(to, &(float){(float)number}, 4); break;
    case UM_FLOAT64: memcpy(to, &(double){(double)number}, 8); break;
    case UM_COMPLEX64: memcpy(to, &(um_c64){(float)number, (float)(number / 2)}, 8); break;
    case UM_COMPLEX128: memcpy(to, &(um_c128){(double)number, (double)(number / 2)}, 16); break;
    default: memcpy(to, &number, um_dtype_size(dtype)); break; /* little-endian */
    }
}

static bool is_integer(um_dtype dtype) { return dtype >= UM_INT8 && dtype <= UM_UINT64; }

/* Small numbers are odd: no quotient is NaN, whose bits differ between processors. */
typedef enum contents { SMALL_NUMBERS, ANY_INTEGERS, BYTES } contents;

/* How wild the layout is: as C, contiguous but perhaps shifted, anything. */
static bool make_array(array *a, int ndim, const int64_t *shape, um_dtype dtype, size_t itemsize, contents what,
                       bool input, size_t granularity) {
    int order[UM_MAX_NDIM];
    const bool plain = random_below(2) == 0;
    int64_t below = 0;
    int64_t step = (int64_t)itemsize;
    memset(a, 0, sizeof *a);
    a->itemsize = itemsize;
    a->operand.dtype = dtype;
    a->operand.strides = a->strides;
    for (int d = 0; d < ndim; d++) {
        order[d] = ndim - 1 - d;
    }
    for (int d = ndim - 1; d > 0 && !plain; d--) {
        const int other = (int)random_below(d + 1), swap = order[d];
        order[d] = order[other];
        order[other] = swap;
    }
    for (int k = 0; k < ndim; k++) {
        const int d = order[k];
        if (!plain && random_below(5) == 0) {
            step += (int64_t)granularity * random_below(3);
        }
        a->strides[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
        if (!plain && random_below(6) == 0) {
            a->strides[d] = -a->strides[d];
            below += (shape[d] - 1) * a->strides[d];
        }
        if (input && random_below(plain ? 12 : 6) == 0) {
            below -= a->strides[d] < 0 ? (shape[d] - 1) * a->strides[d] : 0;
            a->strides[d] = 0;
        }
    }
    a->offset = (size_t)-below + granularity * (size_t)(random_below(3) == 0 ? random_below(20) : 0);
    a->size = a->offset + (size_t)step + granularity * 8;
    if (a->size > MAX_BYTES) {
        return false;
    }
    um_error err = {0};
    if (!ok(um_block_new(ctx, a->size, 0, (um_location){UM_LOCATION_NONE, 0}, &a->operand.block, &err), &err)) {
        return false;
    }
    a->memory = um_block_ptr(a->operand.block);
    a->operand.data = a->memory + a->offset;
    a->before = malloc(a->size);
    for (size_t i = 0; i < a->size; i++) {
        a->before[i] = (char)random_bits();
    }
    if (what != BYTES) { /* the same numbers at every phase that an element can have */
        const size_t phase = a->offset % granularity;
        for (size_t i = phase; i + um_dtype_size(dtype) <= a->size; i += um_dtype_size(dtype)) {
            put_number(a->before + i, dtype,
                       what == SMALL_NUMBERS ? random_below(16) * 2 - 15 : (int64_t)random_bits());
        }
    }
    memcpy(a->memory, a->before, a->size);
    return true;
}

static char *expected_at(const array *a, int ndim, const int64_t *index) {
    char *at = a->before + a->offset;
    for (int d = 0; d < ndim; d++) {
        at += index[d] * a->strides[d];
    }
    return at;
}

/* Advances a C-order index; false after the last. */
static bool next_index(int ndim, const int64_t *shape, int64_t *index) {
    for (int d = ndim - 1; d >= 0; d--) {
        if (++index[d] < shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

static int64_t count_of(int ndim, const int64_t *shape) {
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

static int make_shape(int64_t *shape, int64_t most, int max_ndim) {
    const int ndim = (int)random_below(max_ndim + 1);
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        const int64_t kind = random_below(10);
        shape[d] = kind == 0 ? 1 : kind < 7 ? random_below(12) + 1 : kind == 7 ? 64 : random_below(3000) + 1;
        if (count * shape[d] > most) {
            shape[d] = count * 2 <= most ? 2 : 1;
        }
        count *= shape[d];
    }
    if (ndim > 0 && random_below(40) == 0) {
        shape[random_below(ndim)] = 0;
    }
    return ndim;
}

static void finish(um_wait *wait) {
    um_error err = {0};
    um_wait_drop(wait);
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
}

/* Whether the output's memory is what its `before` has become. */
static bool is_as_expected(const array *out) { return memcmp(out->memory, out->before, out->size) == 0; }

/* --- elementwise ------------------------------------------------------------------------------------------------------------------------ */

#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    UM_DEFINE_LOOP_(name, token, result, expression, UM_COMPUTE_##token)
#define UM_DEFINE_LOOP_(name, token, result, expression, ...)                                                          \
    UM_DEFINE_LOOP__(name, token, result, expression, __VA_ARGS__)
#define UM_DEFINE_LOOP__(name, token, result_, expression, T_, U_)                                                     \
    static void loop_##name##_##token(char *out, const char *const in[3]) {                                            \
        typedef T_ T;                                                                                                  \
        typedef U_ U;                                                                                                  \
        UM_TYPE(token) x, y, z;                                                                                        \
        memcpy(&x, in[0], sizeof x);                                                                                   \
        memcpy(&y, in[1], sizeof y);                                                                                   \
        memcpy(&z, in[2], sizeof z);                                                                                   \
        const T a = UM_LOADED_##token(x), b = UM_LOADED_##token(y), c = UM_LOADED_##token(z);                          \
        (void)sizeof(U), (void)a, (void)b, (void)c;                                                                    \
        const UM_TYPE(result_) result = UM_STORED_##result_(expression);                                               \
        memcpy(out, &result, sizeof result);                                                                           \
    }
#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP
#undef UM_DEFINE_LOOP

typedef void (*loop)(char *out, const char *const in[3]);
/* NULL where one operation or type uses the kernel of another. */
static const loop loops[UM_OP_COUNT][UM_DTYPE_COUNT] = {
#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    [UM_OP_##name][UM_DTYPE_##token] = loop_##name##_##token,
#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP
};

static void make_immediate(array *a) {
    char number[16];
    memset(number, 0x5a, sizeof number); /* what is behind the element must not matter */
    put_number(number, a->operand.dtype, random_below(8) * 2 - 7);
    memcpy(&a->operand.value, number, 16);
    um_block_unref(a->operand.block);
    a->operand.block = NULL;
}

static void expect_elementwise(um_op op, um_dtype dtype, int ndim, const int64_t *shape, const array *in, array *out) {
    static const char zeros[16];
    int64_t index[UM_MAX_NDIM] = {0};
    if (count_of(ndim, shape) == 0) {
        return;
    }
    do {
        const char *from[3] = {zeros, zeros, zeros};
        for (int i = 0; i < um_op_input_count(op); i++) {
            from[i] =
                in[i].operand.block == NULL ? (const char *)&in[i].operand.value : expected_at(&in[i], ndim, index);
        }
        loops[op][dtype](expected_at(out, ndim, index), from);
    } while (next_index(ndim, shape, index));
}

static void check_elementwise(um_op op, um_dtype dtype, int64_t most, int max_ndim) {
    int64_t shape[UM_MAX_NDIM];
    const int ndim = make_shape(shape, most, max_ndim);
    array in[3], out;
    um_operand inputs[3];
    const size_t size = um_dtype_size(dtype);
    const int count = um_op_input_count(op);
    um_dtype result;
    UM_REQUIRE(um_op_has_loop(op, dtype, &result));
    const contents what = is_integer(dtype) ? ANY_INTEGERS : SMALL_NUMBERS;
    UM_REQUIRE(make_array(&out, ndim, shape, result, um_dtype_size(result), is_integer(result) ? what : SMALL_NUMBERS,
                          false, um_dtype_size(result)));
    for (int i = 0; i < count; i++) {
        UM_REQUIRE(make_array(&in[i], ndim, shape, dtype, size, what, true, size));
        if (random_below(6) == 0) {
            make_immediate(&in[i]);
        } else if (result == dtype && random_below(8) == 0) { /* in place */
            free_array(&in[i]);
            in[i] = out;
            in[i].before = malloc(out.size);
            memcpy(in[i].before, out.before, out.size);
            (void)um_block_ref(out.operand.block);
        }
        in[i].operand.strides = in[i].strides;
        inputs[i] = in[i].operand;
    }
    out.operand.strides = out.strides;
    expect_elementwise(op, dtype, ndim, shape, in, &out);
    um_wait wait;
    um_error err = {0};
    UM_CHECK(ok(um_kernel_elementwise(ctx, stream, op, ndim, shape, inputs, &out.operand, false, &wait, &err), &err));
    finish(&wait);
    if (!is_as_expected(&out)) {
        printf("%s of type %d, %d dimensions\n", um_op_name(op), (int)dtype, ndim);
        UM_CHECK(false);
    }
    for (int i = 0; i < count; i++) {
        free_array(&in[i]);
    }
    free_array(&out);
}

static void test_elementwise(void) {
    for (int round = 0; round < 30; round += um_test_step()) {
        for (int op = 0; op < UM_OP_COUNT; op++) {
            const int first = (int)random_below(UM_DTYPE_COUNT), step = round < 2 ? 1 : 4; /* some of the types */
            for (int i = 0; i < UM_DTYPE_COUNT; i += step) {
                const int dtype = (first + i) % UM_DTYPE_COUNT;
                if (loops[op][dtype] != NULL) {
                    check_elementwise((um_op)op, (um_dtype)dtype, 3000, round < 25 ? 5 : 12);
                }
            }
        }
    }
}

/* --- casts, copies, fills ------------------------------------------------------------------------------------------------------------------ */

/* Numbers are small where they are not integers, so that C defines every conversion. */
static void cast_one(um_dtype from, um_dtype to, const char *in, char *out) {
    union {
        double parts[2];
        float small[2];
    } number = {.parts = {0}};
    int64_t integer = 0; /* its low bits, for integers */
    const bool is_unsigned = from == UM_UINT8 || from == UM_UINT16 || from == UM_UINT32 || from == UM_UINT64;
    if (is_integer(from) || from == UM_BOOL) {
        const size_t size = um_dtype_size(from);
        memcpy(&integer, in, size);
        if (is_integer(from) && !is_unsigned && size < 8) {
            integer = (int64_t)((uint64_t)integer << (64 - 8 * size)) >> (64 - 8 * size);
        }
        number.parts[0] = from == UM_UINT64 ? (double)(uint64_t)integer : (double)integer;
    } else if (from == UM_FLOAT64 || from == UM_COMPLEX128) {
        memcpy(number.parts, in, um_dtype_size(from));
        integer = (int64_t)number.parts[0];
    } else {
        memcpy(number.small, in, um_dtype_size(from));
        const float re = from == UM_FLOAT16 ? um_cast_f16_to_f32(*(const um_f16 *)(const void *)in) : number.small[0];
        number.parts[1] = from == UM_COMPLEX64 ? (double)number.small[1] : 0;
        number.parts[0] = (double)re;
        integer = (int64_t)re;
    }
    float re = (float)number.parts[0];
    const float im = (float)number.parts[1];
    if (is_integer(from)) { /* from 64 bits at once: two steps round twice */
        re = from == UM_UINT64 ? (float)(uint64_t)integer : (float)integer;
    }
    switch ((int)to) {
    case UM_BOOL: out[0] = integer != 0 || number.parts[1] != 0; break;
    case UM_FLOAT16: memcpy(out, &(um_f16){um_cast_f32_to_f16(re).bits}, 2); break;
    case UM_FLOAT32: memcpy(out, &re, 4); break;
    case UM_COMPLEX64: memcpy(out, &(um_c64){re, im}, 8); break;
    case UM_FLOAT64:
    case UM_COMPLEX128: memcpy(out, number.parts, um_dtype_size(to)); break;
    default: memcpy(out, &integer, um_dtype_size(to)); break;
    }
}

/* Large enough for tiles, and with axes in a random order. */
static void test_large_transpositions(void) {
    for (int round = 0; round < 12; round += um_test_step()) {
        static const um_dtype dtypes[] = {UM_FLOAT32, UM_FLOAT64, UM_UINT8, UM_COMPLEX64};
        check_elementwise(UM_OP_subtract, dtypes[round % 4], 300000, 3);
    }
}

static void check_cast(um_dtype from, um_dtype to) {
    int64_t shape[UM_MAX_NDIM], index[UM_MAX_NDIM] = {0};
    const int ndim = make_shape(shape, 5000, 6);
    array in, out;
    const contents what = is_integer(from) ? ANY_INTEGERS : SMALL_NUMBERS;
    UM_REQUIRE(make_array(&out, ndim, shape, to, um_dtype_size(to), BYTES, false, um_dtype_size(to)));
    UM_REQUIRE(make_array(&in, ndim, shape, from, um_dtype_size(from), what, true, um_dtype_size(from)));
    if (random_below(8) == 0) {
        make_immediate(&in);
    }
    if (count_of(ndim, shape) > 0) {
        do {
            cast_one(from, to,
                     in.operand.block == NULL ? (const char *)&in.operand.value : expected_at(&in, ndim, index),
                     expected_at(&out, ndim, index));
        } while (next_index(ndim, shape, index));
    }
    um_wait wait;
    um_error err = {0};
    in.operand.strides = in.strides;
    out.operand.strides = out.strides;
    UM_CHECK(ok(um_kernel_cast(ctx, stream, ndim, shape, &in.operand, &out.operand, false, &wait, &err), &err));
    finish(&wait);
    UM_CHECK(is_as_expected(&out));
    free_array(&in);
    free_array(&out);
}

static void test_cast(void) {
    for (int round = 0; round < 8; round += um_test_step()) {
        for (int pair = 0; pair < UM_DTYPE_COUNT * UM_DTYPE_COUNT; pair++) {
            check_cast((um_dtype)(pair / UM_DTYPE_COUNT), (um_dtype)(pair % UM_DTYPE_COUNT));
        }
    }
}

/* Copies (item NULL) and fills of elements at any address. */
static void check_move(size_t itemsize, const char *item) {
    int64_t shape[UM_MAX_NDIM], index[UM_MAX_NDIM] = {0};
    const int ndim = make_shape(shape, 5000, 6);
    array in, out;
    const size_t granularity = random_below(3) == 0 ? (size_t)1 << random_below(5) : itemsize;
    UM_REQUIRE(make_array(&out, ndim, shape, UM_FLOAT32, itemsize, BYTES, false, granularity));
    UM_REQUIRE(make_array(&in, ndim, shape, UM_FLOAT32, itemsize, BYTES, true, granularity));
    in.operand.strides = in.strides;
    out.operand.strides = out.strides;
    if (count_of(ndim, shape) > 0) {
        do {
            memcpy(expected_at(&out, ndim, index), item != NULL ? item : expected_at(&in, ndim, index), itemsize);
        } while (next_index(ndim, shape, index));
    }
    um_wait wait;
    um_error err = {0};
    const um_status status =
        item != NULL
            ? um_kernel_fill(ctx, stream, ndim, shape, itemsize, item, &out.operand, false, &wait, &err)
            : um_kernel_copy(ctx, stream, ndim, shape, itemsize, &in.operand, &out.operand, false, &wait, &err);
    UM_CHECK(ok(status, &err));
    finish(&wait);
    UM_CHECK(is_as_expected(&out));
    free_array(&in);
    free_array(&out);
}

static void test_copy_and_fill(void) {
    static const char item[16] = "0123456789abcdef";
    for (int round = 0; round < 150; round += um_test_step()) {
        for (size_t itemsize = 1; itemsize <= 16; itemsize *= 2) {
            check_move(itemsize, NULL);
            check_move(itemsize, item);
        }
    }
}

/* --- sums ---------------------------------------------------------------------------------------------------------------------------------- */

/* Values are small integers, so that every order of additions gives the same float. */
static void expect_sum(um_dtype dtype, int ndim, const int64_t *shape, const int64_t *out_shape, const array *in,
                       array *out) {
    int64_t index[UM_MAX_NDIM] = {0};
    const um_dtype result = out->operand.dtype;
    if (count_of(ndim, out_shape) == 0) {
        return;
    }
    do {
        put_number(expected_at(out, ndim, index), result, 0);
    } while (next_index(ndim, out_shape, index));
    if (count_of(ndim, shape) == 0) {
        return;
    }
    do {
        char *at = expected_at(out, ndim, index); /* strides of reduced axes are 0 */
        char term[8], total[8];
        cast_one(dtype, result, expected_at(in, ndim, index), term);
        memcpy(total, at, um_dtype_size(result));
        loops[UM_OP_add][result == UM_INT64 ? UM_UINT64 : result](at, (const char *const[3]){total, term, term});
    } while (next_index(ndim, shape, index));
}

static void check_sum_of(um_dtype dtype, int ndim, const int64_t *shape, const bool *reduced) {
    int64_t out_shape[UM_MAX_NDIM];
    array in, out;
    const um_dtype result = dtype == UM_INT32 ? UM_INT64 : dtype;
    const contents what = is_integer(dtype) ? ANY_INTEGERS : SMALL_NUMBERS;
    for (int d = 0; d < ndim; d++) {
        out_shape[d] = reduced[d] ? 1 : shape[d];
    }
    UM_REQUIRE(make_array(&in, ndim, shape, dtype, um_dtype_size(dtype), what, true, um_dtype_size(dtype)));
    UM_REQUIRE(make_array(&out, ndim, out_shape, result, um_dtype_size(result), BYTES, false, um_dtype_size(result)));
    for (int d = 0; d < ndim; d++) {
        out.strides[d] = reduced[d] ? 0 : out.strides[d];
    }
    expect_sum(dtype, ndim, shape, out_shape, &in, &out);
    for (int d = 0; d < ndim; d++) {
        out.strides[d] = reduced[d] ? 12345 : out.strides[d]; /* to be ignored */
    }
    um_wait wait;
    um_error err = {0};
    in.operand.strides = in.strides;
    out.operand.strides = out.strides;
    UM_CHECK(ok(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, ndim, shape, reduced, &in.operand, &out.operand, false,
                                 &wait, &err),
                &err));
    finish(&wait);
    if (!is_as_expected(&out)) {
        printf("sum of type %d, shape and axes:", (int)dtype);
        for (int d = 0; d < ndim; d++) {
            printf(" %lld%s", (long long)shape[d], reduced[d] ? "-" : "");
        }
        printf("\n");
        UM_CHECK(false);
    }
    free_array(&in);
    free_array(&out);
}

static void test_sum(void) {
    for (int round = 0; round < 400; round += um_test_step()) {
        for (int dtype = 0; dtype < SUM_DTYPES; dtype++) {
            int64_t shape[UM_MAX_NDIM];
            bool reduced[UM_MAX_NDIM];
            const int ndim = make_shape(shape, round % 20 == 0 ? 200000 : 5000, round < 350 ? 4 : 13);
            for (int d = 0; d < ndim; d++) {
                reduced[d] = random_below(2) == 0;
            }
            check_sum_of(sum_dtypes[dtype], ndim, shape, reduced);
        }
    }
}

/* Long enough for partial sums, in each way of reading. */
static void test_sum_of_many(void) {
    static const int64_t shapes[][2] = {{1, 300007}, {3, 100000}, {100000, 3}, {5000, 64},
                                        {64, 5000},  {100001, 4}, {2, 131072}};
    const int count = (int)(sizeof shapes / sizeof shapes[0]) * SUM_DTYPES * 4;
    for (int round = 0; round < count; round += um_test_step()) {
        const bool reduced[2] = {(round & 1) != 0, (round & 2) != 0};
        check_sum_of(sum_dtypes[round / 4 % SUM_DTYPES], 2, shapes[round / 4 / SUM_DTYPES], reduced);
    }
}

/* Values near 1 and a few large ones that cancel: a plain float32 sum would be off by thousands. */
static void test_sum_is_accurate(void) {
    const int64_t count = 1 << 20, stride = 4;
    um_error err = {0};
    um_block *in_block, *out_block;
    UM_REQUIRE(ok(um_block_new(ctx, (size_t)count * 4, 0, (um_location){UM_LOCATION_NONE, 0}, &in_block, &err), &err));
    UM_REQUIRE(ok(um_block_new(ctx, 4, 0, (um_location){UM_LOCATION_NONE, 0}, &out_block, &err), &err));
    float *x = (float *)(void *)um_block_ptr(in_block);
    double exact = 0;
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(random_bits() >> 40) * 0x1p-24f;
        exact += (double)x[i];
    }
    const um_operand in = {.block = in_block, .data = um_block_ptr(in_block), .dtype = UM_FLOAT32, .strides = &stride};
    const um_operand out = {
        .block = out_block, .data = um_block_ptr(out_block), .dtype = UM_FLOAT32, .strides = &stride};
    um_wait wait;
    UM_CHECK(ok(
        um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &count, (const bool[1]){true}, &in, &out, false, &wait, &err),
        &err));
    finish(&wait);
    const float sum = *(const float *)(const void *)um_block_ptr(out_block);
    UM_CHECK(fabs((double)sum - exact) <= exact * 0x1p-23);
    x[12345] = INFINITY;
    UM_CHECK(ok(
        um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &count, (const bool[1]){true}, &in, &out, false, &wait, &err),
        &err));
    finish(&wait);
    UM_CHECK(*(const float *)(const void *)um_block_ptr(out_block) == INFINITY);
    um_block_unref(in_block);
    um_block_unref(out_block);
}

/* --- other reductions ------------------------------------------------------------------------------------------------------------------ */

/* Elements as numbers, small enough for every order of operations to give the same. */
/* Any element: they are whole. Not long double, of which Valgrind keeps 53 bits. */
typedef __int128 whole;

static whole number_at(um_dtype dtype, const char *at) {
    double parts[2] = {0, 0};
    if (dtype == UM_UINT64) { /* -1 and so on have become large */
        uint64_t large;
        memcpy(&large, at, sizeof large);
        return large;
    }
    cast_one(dtype, dtype >= UM_COMPLEX64 ? UM_COMPLEX128 : UM_FLOAT64, at, (char *)parts);
    return (whole)parts[0];
}

/* What a reduction makes of the elements so far and one more, by their real parts: those of complex numbers decide alone. */
typedef struct outcome {
    whole least, greatest;
    int64_t place_of_least, place_of_greatest, count, nonzero;
} outcome;

static void note_element(outcome *so_far, whole x) {
    if (so_far->count == 0 || x < so_far->least) {
        so_far->least = x;
        so_far->place_of_least = so_far->count;
    }
    if (so_far->count == 0 || x > so_far->greatest) {
        so_far->greatest = x;
        so_far->place_of_greatest = so_far->count;
    }
    so_far->count++;
    so_far->nonzero += x != 0;
}

/* The axes that go, in C order, for the output at `index`. */
static outcome reduce_one(const array *in, um_dtype dtype, int ndim, const int64_t *shape, const bool *reduced,
                          const int64_t *index) {
    int64_t at[UM_MAX_NDIM], inner[UM_MAX_NDIM], lengths[UM_MAX_NDIM];
    outcome result = {.count = 0};
    for (int d = 0; d < ndim; d++) {
        inner[d] = 0;
        lengths[d] = reduced[d] ? shape[d] : 1;
    }
    do {
        for (int d = 0; d < ndim; d++) {
            at[d] = reduced[d] ? inner[d] : index[d];
        }
        note_element(&result, number_at(dtype, expected_at(in, ndim, at)));
    } while (next_index(ndim, lengths, inner));
    return result;
}

static void check_reduction_of(um_reduction reduction, um_dtype dtype, int ndim, const int64_t *shape,
                               const bool *reduced) {
    int64_t out_shape[UM_MAX_NDIM], index[UM_MAX_NDIM] = {0};
    array in, out;
    um_dtype result;
    for (int d = 0; d < ndim; d++) {
        out_shape[d] = reduced[d] ? 1 : shape[d];
    }
    if (count_of(ndim, shape) == 0 || !um_reduce_result(reduction, dtype, &result)) {
        return;
    }
    const size_t size = um_dtype_size(dtype), result_size = um_dtype_size(result);
    UM_REQUIRE(make_array(&in, ndim, shape, dtype, size, SMALL_NUMBERS, true, size));
    UM_REQUIRE(make_array(&out, ndim, out_shape, result, result_size, BYTES, false, result_size));
    for (int d = 0; d < ndim; d++) {
        out.strides[d] = reduced[d] ? 0 : out.strides[d];
    }
    do {
        const outcome all = reduce_one(&in, dtype, ndim, shape, reduced, index);
        char *at = expected_at(&out, ndim, index);
        switch ((int)reduction) {
        case UM_REDUCE_count: put_number(at, result, all.nonzero); break;
        case UM_REDUCE_any: put_number(at, result, all.nonzero != 0); break;
        case UM_REDUCE_all: put_number(at, result, all.nonzero == all.count); break;
        case UM_REDUCE_argmin: put_number(at, result, all.place_of_least); break;
        case UM_REDUCE_argmax: put_number(at, result, all.place_of_greatest); break;
        case UM_REDUCE_min: put_number(at, result, (int64_t)all.least); break;
        default: put_number(at, result, (int64_t)all.greatest); break;
        }
    } while (next_index(ndim, out_shape, index));
    um_wait wait;
    um_error err = {0};
    in.operand.strides = in.strides;
    out.operand.strides = out.strides;
    UM_CHECK(ok(
        um_kernel_reduce(ctx, stream, reduction, ndim, shape, reduced, &in.operand, &out.operand, false, &wait, &err),
        &err));
    finish(&wait);
    if (!is_as_expected(&out)) {
        printf("%s of %s, shape and axes:", um_reduction_name(reduction), um_dtype_name(dtype));
        for (int d = 0; d < ndim; d++) {
            printf(" %lld%s", (long long)shape[d], reduced[d] ? "-" : "");
        }
        printf("\n");
        UM_CHECK(false);
    }
    free_array(&in);
    free_array(&out);
}

static void test_reductions(void) {
    static const um_reduction reductions[] = {UM_REDUCE_count, UM_REDUCE_any,    UM_REDUCE_all,   UM_REDUCE_min,
                                              UM_REDUCE_max,   UM_REDUCE_argmin, UM_REDUCE_argmax};
    for (int round = 0; round < 40; round += um_test_step()) {
        for (int which = 0; which < 7 * UM_DTYPE_COUNT; which++) {
            int64_t shape[UM_MAX_NDIM];
            bool reduced[UM_MAX_NDIM];
            const int ndim = make_shape(shape, round % 20 == 0 ? 100000 : 3000, round < 35 ? 4 : 13);
            for (int d = 0; d < ndim; d++) {
                reduced[d] = random_below(2) == 0;
            }
            check_reduction_of(reductions[which % 7], (um_dtype)(which / 7), ndim, shape, reduced);
        }
    }
}

/* --- misuse, tables ----------------------------------------------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    const int64_t shape = 5, stride = 8;
    um_error err = {0};
    um_block *block;
    UM_REQUIRE(ok(um_block_new(ctx, 64, 0, (um_location){UM_LOCATION_NONE, 0}, &block, &err), &err));
    const um_operand good = {.block = block, .data = um_block_ptr(block), .dtype = UM_FLOAT64, .strides = &stride};
    um_operand odd = good, integers[2] = {good, good};
    odd.data += 4;
    um_wait wait;
    UM_CHECK(um_kernel_elementwise(ctx, stream, UM_OP_negative, 1, &shape, &odd, &good, false, &wait, &err) ==
             UM_ERR_VALUE);
    UM_CHECK(!wait.needed);
    integers[0].dtype = integers[1].dtype = UM_INT64;
    UM_CHECK(um_kernel_elementwise(ctx, stream, UM_OP_true_divide, 1, &shape, integers, &good, false, &wait, &err) ==
             UM_ERR_TYPE);
    UM_CHECK(um_kernel_elementwise(ctx, stream, UM_OP_negative, 1, &shape, integers, &good, false, &wait, &err) ==
             UM_ERR_TYPE);
    UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &shape, (const bool[1]){true}, &odd, &good, false, &wait,
                              &err) == UM_ERR_VALUE);
    UM_CHECK(um_kernel_copy(ctx, stream, 1, &shape, 3, &good, &good, false, &wait, &err) == UM_ERR_VALUE);
    UM_CHECK(um_kernel_copy(ctx, stream, 1, &shape, 0, &good, &good, false, &wait, &err) == UM_ERR_VALUE);
    UM_CHECK(um_kernel_copy(ctx, stream, 1, &shape, 32, &good, &good, false, &wait, &err) == UM_ERR_VALUE);
    UM_CHECK(um_kernel_fill(ctx, stream, 1, &shape, 12, &stride, &good, false, &wait, &err) == UM_ERR_VALUE);
    UM_CHECK(um_kernel_cast(ctx, stream, 1, &shape, &integers[0], &odd, false, &wait, &err) == UM_ERR_VALUE);
    odd.dtype = UM_INT64;
    UM_CHECK(um_kernel_cast(ctx, stream, 1, &shape, &odd, &good, false, &wait, &err) == UM_ERR_VALUE);
    const bool reduced[1] = {true};
    const um_operand immediate = {.dtype = UM_FLOAT64};
    UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &shape, reduced, &immediate, &good, false, &wait, &err) ==
             UM_ERR_VALUE);
    UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &shape, reduced, &good, &immediate, false, &wait, &err) ==
             UM_ERR_VALUE);
    UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &shape, reduced, &good, &integers[0], false, &wait,
                              &err) == UM_ERR_TYPE);
    odd.dtype = UM_FLOAT64;
    UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &shape, reduced, &good, &odd, false, &wait, &err) ==
             UM_ERR_VALUE);
    um_block_unref(block);
}

typedef struct job {
    um_operand a, b, c, small, odd; /* whole matrices; float32 a, b and c */
    int64_t shape[2];
} job;

static um_status do_add(const job *at, um_wait *wait, um_error *err) {
    const um_operand inputs[2] = {at->a, at->b};
    return um_kernel_elementwise(ctx, stream, UM_OP_add, 2, at->shape, inputs, &at->c, false, wait, err);
}

static um_status do_transpose(const job *at, um_wait *wait, um_error *err) {
    const int64_t strides[2] = {4, at->shape[0] * 4};
    um_operand turned = at->a;
    turned.strides = strides;
    return um_kernel_elementwise(ctx, stream, UM_OP_negative, 2, at->shape, &turned, &at->c, false, wait, err);
}

static um_status do_copy(const job *at, um_wait *wait, um_error *err) {
    return um_kernel_copy(ctx, stream, 2, at->shape, 4, &at->a, &at->c, false, wait, err);
}

static um_status do_fill(const job *at, um_wait *wait, um_error *err) {
    const float item = 3;
    return um_kernel_fill(ctx, stream, 2, at->shape, 4, &item, &at->c, false, wait, err);
}

static um_status do_fill_of_odd(const job *at, um_wait *wait, um_error *err) {
    const float item = 3;
    return um_kernel_fill(ctx, stream, 2, at->shape, 4, &item, &at->odd, false, wait, err);
}

static um_status do_cast(const job *at, um_wait *wait, um_error *err) {
    um_operand out = at->c;
    out.dtype = UM_INT32;
    return um_kernel_cast(ctx, stream, 2, at->shape, &at->a, &out, false, wait, err);
}

static um_status do_sum(const job *at, um_wait *wait, um_error *err) {
    return um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 2, at->shape, (const bool[2]){true, true}, &at->a, &at->small,
                            false, wait, err);
}

static um_status do_sum_of_nothing(const job *at, um_wait *wait, um_error *err) {
    const int64_t none[2] = {0, 1};
    return um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 2, none, (const bool[2]){true, true}, &at->a, &at->small, false,
                            wait, err);
}

/* Each call of the driver fails in turn: an error or none, nothing to wait for after one, and it works when none fails. */
static void test_each_failing_call(void) {
    um_status (*const jobs[])(const job *, um_wait *, um_error *) = {
        do_add, do_transpose, do_copy, do_fill, do_fill_of_odd, do_cast, do_sum, do_sum_of_nothing,
    };
    const int64_t side = 512, strides[2] = {side * 4, 4}, zero[2] = {0, 0};
    um_error err = {0};
    um_block *block;
    const size_t bytes = (size_t)(side * side) * 4;
    UM_REQUIRE(ok(um_block_new(ctx, 4 * bytes, 0, (um_location){UM_LOCATION_NONE, 0}, &block, &err), &err));
    memset(um_block_ptr(block), 0, 4 * bytes);
    job at = {.shape = {side, side}};
    at.a = (um_operand){.block = block, .data = um_block_ptr(block), .dtype = UM_FLOAT32, .strides = strides};
    at.b = at.c = at.odd = at.small = at.a;
    at.b.data += bytes;
    at.c.data += 2 * bytes;
    at.odd.data += 2 * bytes + 1;
    at.small.data += 3 * bytes;
    at.small.strides = zero;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        bool failed = true;
        for (unsigned long n = 1; failed && n < 100; n++) {
            um_wait wait;
            FAKE(fakecu_fail_nth_call)(n, 999);
            const um_status status = jobs[i](&at, &wait, &err);
            failed = FAKE(fakecu_last_failed)() != NULL;
            FAKE(fakecu_reset_faults)();
            UM_CHECK(status == UM_OK || (failed && status == UM_ERR_CUDA && !wait.needed));
            finish(&wait);
        }
        UM_CHECK(!failed);
    }
    um_block_unref(block);
}

/* The second kernel of a sum does not start: the error is the driver's, the partial sums are given back, and the next sum is right. */
static void test_failed_launch(void) {
    const int64_t count = 1 << 20, stride = 8;
    um_error err = {0};
    um_block *block;
    UM_REQUIRE(ok(um_block_new(ctx, (size_t)count * 8 + 8, 0, (um_location){UM_LOCATION_NONE, 0}, &block, &err), &err));
    int64_t *x = (int64_t *)(void *)um_block_ptr(block);
    for (int64_t i = 0; i < count; i++) {
        x[i] = i;
    }
    const um_operand in = {.block = block, .data = um_block_ptr(block), .dtype = UM_INT64, .strides = &stride};
    um_operand out = in;
    out.data += count * 8;
    um_wait wait;
    for (unsigned long nth = 1; nth <= 2; nth++) {
        FAKE(fakecu_fail)("cuLaunchKernel", nth, 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        UM_CHECK(um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &count, (const bool[1]){true}, &in, &out, false, &wait,
                                  &err) != UM_OK);
        UM_CHECK(!wait.needed);
        UM_CHECK_CONTAINS(err.call, "cuLaunchKernel");
    }
    UM_CHECK(ok(
        um_kernel_reduce(ctx, stream, UM_REDUCE_sum, 1, &count, (const bool[1]){true}, &in, &out, false, &wait, &err),
        &err));
    finish(&wait);
    UM_CHECK(x[count] == count * (count - 1) / 2);
    um_block_unref(block);
}

static void test_tables(void) {
    um_op op;
    um_dtype result;
    UM_CHECK(um_op_find("true_divide", &op) && op == UM_OP_true_divide && !um_op_find("nothing", &op));
    UM_CHECK(um_op_has_loop(UM_OP_true_divide, UM_FLOAT32, &result) && result == UM_FLOAT32);
    UM_CHECK(!um_op_has_loop(UM_OP_true_divide, UM_INT32, &result));
    UM_CHECK(um_op_input_count(UM_OP_axpy) == 3 && strcmp(um_op_name(UM_OP_axpy), "axpy") == 0);
    um_backend *backend = um_context_backend(ctx);
    for (int slot = 0; slot < UM_SLOT_COUNT; slot++) { /* every launchable kernel exists */
        um_kernel_handle kernel = 0;
        um_error err = {0};
        if (um_kernel_name(slot) != NULL) {
            UM_CHECK(ok(backend->ops->kernel_get(backend, um_kernel_name(slot), &kernel, &err), &err));
        }
    }
}

int main(void) {
    const bool fake = um_fake_open();
#ifndef UM_TEST_IMAGES
    if (!fake) {
        printf("UMEM_CUDA_LIBRARY does not name the fake driver\n");
        return UM_TEST_SKIPPED;
    }
#endif
    um_error err = {0};
    const um_config config = {"cuda", getenv("UMEM_CUDA_LIBRARY")};
    if (!ok(um_context_open(&config, &ctx, &err), &err) ||
        !ok(um_stream_get(ctx, 0, UM_STREAM_LEGACY, &stream, &err), &err)) {
        return 1;
    }
    UM_RUN(test_tables);
    UM_RUN(test_elementwise);
    UM_RUN(test_large_transpositions);
    UM_RUN(test_cast);
    UM_RUN(test_copy_and_fill);
    UM_RUN(test_sum);
    UM_RUN(test_sum_of_many);
    UM_RUN(test_sum_is_accurate);
    UM_RUN(test_reductions);
    UM_RUN(test_refusals);
    if (fake) {
        UM_RUN(test_failed_launch);
        UM_RUN(test_each_failing_call);
    }
    um_stream_unref(stream);
    um_context_unref(ctx);
    if (fake) {
        UM_CHECK(FAKE(fakecu_live)("all") == 0);
    }
    um_fake_close();
    return um_test_result();
}
