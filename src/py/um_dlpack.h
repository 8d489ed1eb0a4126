/* The structs of DLPack 1.x, declared from its specification (https://dmlc.github.io/dlpack/latest/). Two libraries
 * that exchange an array share nothing but this memory layout, so it is asserted below. No Python here. */
#ifndef UM_DLPACK_H
#define UM_DLPACK_H

#include <stddef.h>
#include <stdint.h>

/* The newest version umem writes. Versions with the same major number have the same layout. */
#define UM_DL_MAJOR 1
#define UM_DL_MINOR 1

/* Kinds of memory (the specification's device types). */
enum {
    UM_DL_CPU = 1,
    UM_DL_CUDA = 2,
    UM_DL_CUDA_HOST = 3,     /* page-locked by CUDA */
    UM_DL_ROCM_HOST = 11,    /* page-locked by ROCm */
    UM_DL_CUDA_MANAGED = 13, /* valid on host and GPU */
};

/* Kinds of element. A kind with a width of 8 bits or less that is missing here is a narrow float. */
enum {
    UM_DL_INT = 0,
    UM_DL_UINT = 1,
    UM_DL_FLOAT = 2,
    UM_DL_HANDLE = 3,
    UM_DL_BFLOAT = 4,
    UM_DL_COMPLEX = 5, /* width counts both parts */
    UM_DL_BOOL = 6,
};

#define UM_DL_FLAG_READ_ONLY ((uint64_t)1 << 0)
#define UM_DL_FLAG_IS_COPIED ((uint64_t)1 << 1)

typedef struct um_dl_device {
    int32_t type;
    int32_t id; /* ordinal of the device */
} um_dl_device;

typedef struct um_dl_dtype {
    uint8_t code;
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1, or the length of a vector type */
} um_dl_dtype;

typedef struct um_dl_tensor {
    void *data; /* NULL when there are no elements */
    um_dl_device device;
    int32_t ndim;
    um_dl_dtype dtype;
    int64_t *shape;   /* ndim entries */
    int64_t *strides; /* ndim entries, counted in elements; NULL: C order */
    uint64_t byte_offset;
} um_dl_tensor;

/* In a capsule named "dltensor". The consumer calls deleter once, from any thread. */
typedef struct um_dl_managed {
    um_dl_tensor tensor;
    void *context; /* the producer's own */
    void (*deleter)(struct um_dl_managed *self);
} um_dl_managed;

typedef struct um_dl_version {
    uint32_t major; /* with another one than UM_DL_MAJOR only the deleter may be used */
    uint32_t minor;
} um_dl_version;

/* In a capsule named "dltensor_versioned". */
typedef struct um_dl_managed_versioned {
    um_dl_version version;
    void *context;
    void (*deleter)(struct um_dl_managed_versioned *self);
    uint64_t flags;
    um_dl_tensor tensor;
} um_dl_managed_versioned;

#define UM_DL_NAME                "dltensor"
#define UM_DL_NAME_USED           "used_dltensor"
#define UM_DL_NAME_VERSIONED      "dltensor_versioned"
#define UM_DL_NAME_VERSIONED_USED "used_dltensor_versioned"

_Static_assert(sizeof(um_dl_device) == 8 && sizeof(um_dl_dtype) == 4 && sizeof(um_dl_version) == 8, "DLPack layout");
_Static_assert(offsetof(um_dl_dtype, bits) == 1 && offsetof(um_dl_dtype, lanes) == 2, "DLPack layout");
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(offsetof(um_dl_tensor, device) == 8 && offsetof(um_dl_tensor, ndim) == 16, "DLPack layout");
_Static_assert(offsetof(um_dl_tensor, dtype) == 20 && offsetof(um_dl_tensor, shape) == 24, "DLPack layout");
_Static_assert(offsetof(um_dl_tensor, strides) == 32 && offsetof(um_dl_tensor, byte_offset) == 40, "DLPack layout");
_Static_assert(sizeof(um_dl_tensor) == 48, "DLPack layout");
_Static_assert(offsetof(um_dl_managed, context) == 48 && offsetof(um_dl_managed, deleter) == 56, "DLPack layout");
_Static_assert(sizeof(um_dl_managed) == 64, "DLPack layout");
_Static_assert(offsetof(um_dl_managed_versioned, context) == 8, "DLPack layout");
_Static_assert(offsetof(um_dl_managed_versioned, deleter) == 16, "DLPack layout");
_Static_assert(offsetof(um_dl_managed_versioned, flags) == 24, "DLPack layout");
_Static_assert(offsetof(um_dl_managed_versioned, tensor) == 32, "DLPack layout");
_Static_assert(sizeof(um_dl_managed_versioned) == 80, "DLPack layout");
#endif

#endif
