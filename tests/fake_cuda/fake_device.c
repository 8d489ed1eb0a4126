/* Devices, their attributes, primary contexts and each thread's stack of current contexts. */
#include "fake_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

bool fake_device_valid(int device) { return device >= 0 && device < fake.config.device_count; }

/* --- devices --------------------------------------------------------- */

CUresult fake_device_get_count(int *count) {
    FAKE_CALL(device_get_count);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = fake.config.device_count;
    return CUDA_SUCCESS;
}

CUresult fake_device_get(CUdevice *device, int ordinal) {
    FAKE_CALL(device_get);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult fake_device_get_name(char *name, int len, CUdevice device) {
    FAKE_CALL(device_get_name);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (name == NULL || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(name, (size_t)len, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult fake_device_get_uuid(CUuuid *uuid, CUdevice device) {
    FAKE_CALL(device_get_uuid);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (uuid == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (int i = 0; i < 16; i++) {
        uuid->bytes[i] = (char)(0xFA + i * 16); /* sign matters: the first is negative as a char */
    }
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

CUresult fake_device_total_mem(size_t *bytes, CUdevice device) {
    FAKE_CALL(device_total_mem);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (bytes == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = fake.config.memory;
    return CUDA_SUCCESS;
}

/* Attributes of one H200, but for what the configuration decides. `since` is the driver version
 * that brought it. */
static const struct {
    CUdevice_attribute attribute;
    int value, since;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472, 0},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32, 0},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32, 11000},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0, 0},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560, 0},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144, 0},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3, 0},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1, 0},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0, 0},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0, 8000},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0, 9020},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0, 8000},
    {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0, 9020},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1, 11020},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0, 12020},
};

#define MAX_OVERRIDES 32
static struct {
    int device;
    CUdevice_attribute attribute;
    int value;
} overrides[MAX_OVERRIDES];
static int override_count;

void fakecu_set_attribute(int device, int attribute, int value) {
    fake_lock();
    if (override_count == MAX_OVERRIDES) {
        fake_unmodelled("fakecu_set_attribute", "more than %d overrides", MAX_OVERRIDES);
    }
    overrides[override_count].device = device;
    overrides[override_count].attribute = (CUdevice_attribute)attribute;
    overrides[override_count++].value = value;
    fake_unlock();
}

void fake_attributes_reset(void) { override_count = 0; }

CUresult fake_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    FAKE_CALL(device_get_attribute);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (int i = override_count - 1; i >= 0; i--) {
        if (overrides[i].device == device && overrides[i].attribute == attribute) {
            *value = overrides[i].value;
            return CUDA_SUCCESS;
        }
    }
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *value = fake.config.managed; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        *value = fake.config.managed && fake.config.concurrent;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device + 1; return CUDA_SUCCESS;
    default: break;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (attributes[i].attribute != attribute) {
            continue;
        }
        if (attributes[i].since > fake.config.version) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *value = attributes[i].value;
        return CUDA_SUCCESS;
    }
    fake_unmodelled(call.call, "attribute %d", (int)attribute);
}

/* --- contexts -------------------------------------------------------- */

#define STACK_SIZE 64

static _Thread_local fake_context *stack[STACK_SIZE];
static _Thread_local int stack_depth;
static _Thread_local unsigned long thread_number;

/* Small and never used twice, unlike the system's thread ids. */
unsigned long fake_thread_number(void) {
    static atomic_ulong last;
    if (thread_number == 0) {
        thread_number = atomic_fetch_add(&last, 1) + 1;
    }
    return thread_number;
}

void fake_stack_reset(void) { stack_depth = 0; }

int fakecu_context_depth(void) { return stack_depth; }

fake_context *fake_current(fake_guard *call) {
    fake_context *context = stack_depth > 0 ? stack[stack_depth - 1] : NULL;
    if (context == NULL) {
        call->result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (context->retains == 0) {
        call->result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (fake.sticky != CUDA_SUCCESS) {
        call->result = fake.sticky;
    } else {
        return context;
    }
    return NULL;
}

static bool is_context(CUcontext handle) {
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (handle == (CUcontext)&fake.contexts[i]) {
            return true;
        }
    }
    return false;
}

CUresult fake_primary_ctx_retain(CUcontext *context, CUdevice device) {
    FAKE_CALL(primary_ctx_retain);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    fake.contexts[device].retains++;
    *context = (CUcontext)&fake.contexts[device];
    return CUDA_SUCCESS;
}

/* Like every call that releases something, it does its work and then reports the injected error:
 * CUDA's own such calls "may also return error codes from previous, asynchronous launches". */
CUresult fake_primary_ctx_release(CUdevice device) {
    FAKE_CALL(primary_ctx_release);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    fake_context *context = &fake.contexts[device];
    if (context->retains == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context->retains == 1) {
        fake_run_context(context);
        fake_events_release_context(context);
        fake_streams_release_context(context);
        fake_memory_release_context(context);
    }
    context->retains--;
    return call.result;
}

CUresult fake_primary_ctx_get_state(CUdevice device, unsigned int *flags, int *active) {
    FAKE_CALL(primary_ctx_get_state);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_device_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *flags = 0;
    *active = fake.contexts[device].retains > 0;
    return CUDA_SUCCESS;
}

CUresult fake_ctx_get_current(CUcontext *context) {
    FAKE_CALL(ctx_get_current);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = stack_depth > 0 ? (CUcontext)stack[stack_depth - 1] : NULL;
    return CUDA_SUCCESS;
}

/* A context that nobody retains any more is taken too: the calls after it fail. */
CUresult fake_ctx_push_current(CUcontext context) {
    FAKE_CALL(ctx_push_current);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_context(context)) {
        fake_unmodelled(call.call, "context %p is no primary context", (void *)context);
    }
    if (stack_depth == STACK_SIZE) {
        fake_unmodelled(call.call, "more than %d contexts on one thread: pushes without pops", STACK_SIZE);
    }
    stack[stack_depth++] = (fake_context *)context;
    return CUDA_SUCCESS;
}

CUresult fake_ctx_pop_current(CUcontext *context) {
    FAKE_CALL(ctx_pop_current);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (stack_depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack_depth--;
    if (context != NULL) {
        *context = (CUcontext)stack[stack_depth];
    }
    return call.result;
}

CUresult fake_ctx_get_device(CUdevice *device) {
    FAKE_CALL(ctx_get_device);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult fake_ctx_synchronize(void) {
    FAKE_CALL(ctx_synchronize);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    fake.counters.waits++;
    fake_run_context(context);
    fake_work_finished();
    return CUDA_SUCCESS;
}
