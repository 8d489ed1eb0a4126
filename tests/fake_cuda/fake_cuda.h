/* What the fake CUDA driver offers beside libcuda's entry points: the table of host kernels, the
 * two hooks that a kernel calls for its operands, and the control functions of the tests
 * (README.md explains what is modelled).
 *
 * Kernels run under the driver's lock, one at a time, on the thread that waits for them.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKECU_API __attribute__((visibility("default")))

/* --- kernels: fake_kernels.c fills the table ------------------------- */

/* grid in blocks, block in threads (x only); params[i] points to a copy of parameter i. */
typedef void (*fakecu_kernel)(const unsigned grid[3], unsigned block, void **params);

typedef struct fakecu_kernel_entry {
    const char *name; /* as given to cuLibraryGetKernel */
    fakecu_kernel run;
    unsigned param_count;
    const size_t *param_sizes; /* bytes, param_count entries; the parameters are copied at launch */
} fakecu_kernel_entry;

extern const fakecu_kernel_entry fakecu_kernels[];
extern const size_t fakecu_kernel_count;

/* Address at which a kernel may access the memory that the program knows as `ptr` (managed,
 * device or page-locked). Aborts, naming the kernel, when the GPU could not access it. Never
 * touches the host's page table. */
void *fakecu_translate(const void *ptr);

/* Applies the migration rules to the pages of [ptr, ptr + size), as if the running kernel
 * accessed all of them. Call it once for every operand's range, before the accesses. Aborts when
 * the range leaves its allocation. */
void fakecu_touch(const void *ptr, size_t size, bool write);

/* --- configuration: from the environment, or here before cuInit ------ */

/* Forgets everything: destroys all objects, pending work included, re-reads the environment.
 * cuInit is needed again. */
FAKECU_API void fakecu_shutdown(void);
/* Drops faults, the sticky error, the limit, the query mode, the hold and counters; runs pending work.
 * Objects stay. */
FAKECU_API void fakecu_reset(void);
/* The same, but counters stay and pending work stays pending. */
FAKECU_API void fakecu_reset_faults(void);

FAKECU_API void fakecu_set_version(int version);
FAKECU_API void fakecu_set_devices(int count);
FAKECU_API void fakecu_set_memory(size_t bytes_per_device);
FAKECU_API void fakecu_set_missing(const char *comma_separated_symbols);
FAKECU_API void fakecu_set_concurrent(int yes);
FAKECU_API void fakecu_set_managed(int yes);
/* Bytes of managed memory that may exist together (all devices); 0: capacity of the devices plus
 * that of the host. Any time. */
FAKECU_API void fakecu_set_managed_limit(size_t bytes);
/* Overrides one device attribute. Any time. */
FAKECU_API void fakecu_set_attribute(int device, int attribute, int value);
/* What cuStreamQuery and cuEventQuery do after answering CUDA_ERROR_NOT_READY: 0 nothing, 1 run
 * the work (default), 2 run one item. */
FAKECU_API void fakecu_set_query_mode(int mode);
/* While on, work takes for ever: queries answer CUDA_ERROR_NOT_READY and run nothing, and calls that wait for work block
 * until it is off. Not for fakecu_step and fakecu_run_all, which abort meanwhile. */
FAKECU_API void fakecu_hold(int on);

/* --- faults ---------------------------------------------------------- */

/* The nth call (1: the next) of `symbol` from now on fails with `code`; forever: and all after
 * it. */
FAKECU_API void fakecu_fail(const char *symbol, unsigned long nth, int code, int forever);
/* The nth driver call of any kind from now on fails once (0: none). cuGetErrorName and
 * cuGetErrorString are not counted. */
FAKECU_API void fakecu_fail_nth_call(unsigned long n, int code);
/* Name of the call that was last failed by either, NULL when none was. Between fakecu_fail_nth_call and a reset it is
 * the nth call's or none: a fault can be set to see what fails after it. */
FAKECU_API const char *fakecu_last_failed(void);
/* Where that call was made: "object+0x1234", the object's file and the offset in it at which the caller went on. Valid
 * until the next question. */
FAKECU_API const char *fakecu_last_failed_at(void);
/* Every call that needs a context fails with `code` from now on, as after a crashed kernel (0:
 * heals). */
FAKECU_API void fakecu_set_sticky(int code);

/* --- what happened --------------------------------------------------- */

/* Calls of a symbol ("cuMemFree") or of a field of um_driver ("mem_prefetch_location") since the
 * last reset. Aborts when unknown. */
FAKECU_API unsigned long fakecu_calls(const char *name);
/* Counters since the last reset: calls, launches, waits (calls that wait for work or ask for it), executed, to_device_bytes,
 * to_host_bytes, host_fault_bytes, link_bytes, peer_bytes, peer_link_bytes, evicted_bytes,
 * copied_bytes. Aborts when unknown. */
FAKECU_API unsigned long long fakecu_counter(const char *name);
/* Live objects: managed, device, host, stream, event, library, context (retains), or all. Aborts
 * when unknown. */
FAKECU_API long fakecu_live(const char *kind);
FAKECU_API unsigned long long fakecu_live_bytes(const char *kind);
/* Objects that were destroyed along with their context instead of by their owner, since load. */
FAKECU_API unsigned long fakecu_leaked(void);
/* Aborts when the driver's own books contradict each other. */
FAKECU_API void fakecu_check(void);

/* Where a page is: device ordinal, -1 host, -2 never touched, -3 not managed memory. */
FAKECU_API int fakecu_page_location(const void *ptr);
/* Bytes of managed memory resident on a device, replicas included. */
FAKECU_API unsigned long long fakecu_resident(int device);
/* Advice on a page: preferred location (device ordinal, -1 host, -2 none), bit mask of accessed-
 * by devices, read-mostly. */
FAKECU_API int fakecu_page_preferred(const void *ptr);
FAKECU_API int fakecu_page_accessed_by(const void *ptr);
FAKECU_API int fakecu_page_read_mostly(const void *ptr);
FAKECU_API int fakecu_page_discarded(const void *ptr);

/* --- queued work ----------------------------------------------------- */

#define FAKECU_ALL_STREAMS ((uintptr_t)-1)

/* Items queued on a stream handle, or on all. 0, 1 and 2 are seen from the calling thread's
 * current context, from device 0 when it has none. */
FAKECU_API long fakecu_pending(uintptr_t stream);
/* Runs one item of the stream (the oldest of all for FAKECU_ALL_STREAMS) and what it depends on;
 * false when there is none. */
FAKECU_API int fakecu_step(uintptr_t stream);
/* Runs everything that is queued. */
FAKECU_API void fakecu_run_all(void);

/* --- what another library of the process may do ---------------------- */

/* A stream of the device's primary context, which somebody has to hold. It counts in the ledger. */
FAKECU_API uintptr_t fakecu_stream_create(int device, int blocking);
FAKECU_API void fakecu_stream_destroy(uintptr_t stream);
/* Queues a kernel that sets the bytes, on a stream (0, 1, 2: of the device). */
FAKECU_API void fakecu_submit_fill(void *ptr, int value, size_t size, uintptr_t stream, int device);
/* Number of contexts on the calling thread's stack: a library puts back what it found. */
FAKECU_API int fakecu_context_depth(void);

/* --- memory that umem does not allocate itself ----------------------- */

/* Plain device memory, as cuMemAlloc makes it: the host cannot touch it. NULL when the device is
 * full. */
FAKECU_API void *fakecu_device_alloc(size_t size, int device);
FAKECU_API void fakecu_device_free(void *ptr);
/* Reads and writes the bytes of any driver memory at once, as the devices see them, whatever is queued, and moves no
 * page. */
FAKECU_API void fakecu_peek(void *dst, const void *src, size_t size);
FAKECU_API void fakecu_poke(void *dst, const void *src, size_t size);

#endif
