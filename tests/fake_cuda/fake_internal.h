/* State of the fake CUDA driver, shared by its files. Everything here is guarded by the one lock
 * that FAKE_CALL takes. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include <cuda.h>

#include "fake_cuda.h"

#define FAKE_MAX_DEVICES 8
#define FAKE_PAGE        ((size_t)4096)
#define FAKE_BLOCK_PAGES ((size_t)512) /* pages of a 2 MiB block: the unit of eviction and of page-table scans */

/* One enumerator per line of um_driver_calls.h. */
typedef enum fake_call_id {
#define UM_DRIVER_CALL(field, symbol, version, need, params) FAKE_CALL_##field,
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
    FAKE_CALL_get_proc_address,
    FAKE_CALL_COUNT,
} fake_call_id;

#define UM_DRIVER_CALL(field, symbol, version, need, params) CUresult fake_##field params;
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL

typedef struct fake_item fake_item;

typedef struct fake_context {
    int device;
    int retains; /* 0: not active */
} fake_context;

typedef enum fake_stream_kind { FAKE_STREAM_CREATED, FAKE_STREAM_LEGACY, FAKE_STREAM_PER_THREAD } fake_stream_kind;

typedef struct fake_stream {
    struct fake_stream *next;
    fake_stream_kind kind;
    fake_context *context;
    bool blocking;        /* ordered with the legacy stream */
    bool zombie;          /* destroyed by its owner while it had work */
    unsigned long thread; /* per-thread streams: whose */
    unsigned long long id;
    fake_item *head, *tail; /* queued work, in order */
    long count;
} fake_stream;

/* One recording of an event, shared by the event, the queued item and those who wait for it. */
typedef struct fake_record {
    int refs;
    bool done;
    fake_stream *stream; /* valid while not done */
    uint64_t seq;
} fake_record;

typedef struct fake_event {
    struct fake_event *next;
    fake_context *context;
    fake_record *record; /* NULL before the first recording */
} fake_event;

typedef struct fake_range {
    CUdeviceptr ptr;
    size_t size;
} fake_range;

/* A place as a small number, so that it fits a page's byte. */
typedef uint8_t fake_place;
#define FAKE_NOWHERE          ((fake_place)0)
#define FAKE_HOST             ((fake_place)1)
#define FAKE_DEVICE(ordinal)  ((fake_place)((ordinal) + 2))
#define FAKE_IS_DEVICE(place) ((place) >= 2)
#define FAKE_ORDINAL(place)   ((int)(place) - 2)

typedef enum fake_item_kind {
    FAKE_ITEM_KERNEL,
    FAKE_ITEM_COPY,
    FAKE_ITEM_MEMSET,
    FAKE_ITEM_PREFETCH,
    FAKE_ITEM_DISCARD,
    FAKE_ITEM_RECORD,
    FAKE_ITEM_WAIT,
} fake_item_kind;

struct fake_item {
    fake_item *next;
    fake_item_kind kind;
    uint64_t seq; /* position in the order of all submissions */
    void *owned;  /* freed with the item */
    union {
        struct {
            const fakecu_kernel_entry *entry;
            unsigned grid[3], block;
            void **params; /* inside `owned` */
        } kernel;
        struct { /* rows of `width` bytes */
            char *dst;
            const char *src;
            size_t dst_pitch, src_pitch, width, height;
        } copy;
        struct {
            CUdeviceptr ptr;
            size_t size;
            unsigned char value;
        } set;
        struct { /* prefetch and discard */
            fake_range range;
            fake_place where;
        } move;
        fake_record *record; /* one reference: record and wait */
    } u;
};

typedef enum fake_memory_kind { FAKE_MEMORY_MANAGED, FAKE_MEMORY_DEVICE, FAKE_MEMORY_HOST } fake_memory_kind;

#define FAKE_PAGE_READ_MOSTLY 1u
#define FAKE_PAGE_DISCARDED   2u
#define FAKE_PAGE_UNSAVED     4u /* discarded, and the devices have written to a copy that the host never gets */

typedef struct fake_page {
    fake_place owner; /* FAKE_NOWHERE: never touched */
    fake_place preferred;
    uint8_t accessed_by; /* bit per device */
    uint8_t replicas;    /* bit per device that holds a read-only copy besides the owner */
    uint8_t flags;
} fake_page;

typedef struct fake_block {
    uint64_t tick;                       /* last use by a device */
    uint16_t resident[FAKE_MAX_DEVICES]; /* pages, replicas included */
    uint16_t held[FAKE_MAX_DEVICES];     /* pages of the device's memory set aside: at least the resident ones */
} fake_block;

typedef struct fake_memory {
    fake_memory_kind kind;
    char *host;            /* the address the program knows */
    char *gpu;             /* second mapping of the same pages; equals host for page-locked memory */
    size_t size;           /* as requested */
    size_t mapped;         /* size rounded up to pages */
    fake_context *context; /* where it was allocated */
    fake_page *pages;      /* managed only, mapped / FAKE_PAGE entries */
    fake_block *blocks;    /* managed only */
    size_t unsaved;        /* pages with FAKE_PAGE_UNSAVED */
    char *aside;           /* where the memfd's pages are meanwhile, as many bytes as `mapped`; NULL before the first */
} fake_memory;

typedef struct fake_config {
    int version;
    int device_count;
    size_t memory;      /* bytes per device */
    size_t host_memory; /* bytes of managed memory the host can back beside the devices */
    bool concurrent;
    bool managed;
    int numa_nodes;
    char missing[1024]; /* comma-separated symbols */
} fake_config;

typedef struct fake_counters {
    unsigned long long calls, launches, waits, executed, to_device_bytes, to_host_bytes, host_fault_bytes, link_bytes,
        peer_bytes, peer_link_bytes, evicted_bytes, copied_bytes;
} fake_counters;

typedef struct fake_state {
    fake_config config;
    bool initialised; /* cuInit has succeeded */
    int pid;          /* of the process that loaded the library */
    int query_mode;
    bool held; /* queued work does not run, and who waits for it waits (fakecu_hold) */
    size_t managed_limit;
    CUresult sticky;

    fake_context contexts[FAKE_MAX_DEVICES];
    fake_stream *streams;
    fake_event *events;
    uint64_t next_seq;
    unsigned long long next_stream_id;
    long pending_work;    /* queued items that use memory, all devices */
    bool host_locked_out; /* no concurrent access: host mappings are protected */

    fake_memory **memory; /* sorted by address */
    size_t memory_count, memory_room;
    size_t managed_bytes;
    size_t plain_bytes[FAKE_MAX_DEVICES];
    size_t resident_pages[FAKE_MAX_DEVICES];
    size_t held_pages[FAKE_MAX_DEVICES];
    uint64_t tick;

    long libraries;
    const char *running; /* name of the kernel or operation being executed */
    int running_device;

    fake_counters counters;
    unsigned long calls[FAKE_CALL_COUNT];
    unsigned long leaked;
} fake_state;

extern fake_state fake;

/* --- calls (fake_driver.c, fake_fault.c) ----------------------------- */

typedef struct fake_guard {
    CUresult result; /* not CUDA_SUCCESS: the call must return it */
    const char *call;
    bool locked;
} fake_guard;

/* `from`: where the caller goes on when the call returns. */
fake_guard fake_enter(fake_call_id id, const void *from);
void fake_leave(fake_guard *guard);

/* First statement of every entry point: takes the lock until the function returns, counts the
 * call, decides whether it fails. */
#define FAKE_CALL(field)                                                                                               \
    __attribute__((cleanup(fake_leave))) fake_guard call = fake_enter(FAKE_CALL_##field, __builtin_return_address(0))

/* Something this driver does not model: says so and aborts. */
_Noreturn void fake_unmodelled(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *fake_call_symbol(fake_call_id id);
const char *fake_call_field(fake_call_id id);
void fake_lock(void);
void fake_unlock(void);
/* Waits until work runs again. The caller holds the lock once; others get it meanwhile. */
void fake_wait_until_released(void);
void fake_set_held(bool held);

/* Injected result for this call, CUDA_SUCCESS for none (fake_fault.c). */
CUresult fake_fault_next(fake_call_id id, const void *from);
void fake_fault_reset(void);
void fake_config_from_environment(fake_config *config);
bool fake_config_lacks(const char *symbol);

/* --- contexts (fake_device.c) ---------------------------------------- */

/* The calling thread's current context; NULL, with the code for it in call->result, when there
 * is none. */
fake_context *fake_current(fake_guard *call);
bool fake_device_valid(int device);
int fake_attribute(int device, CUdevice_attribute attribute, const char *call, int *value);
void fake_attributes_reset(void);
void fake_stack_reset(void);
unsigned long fake_thread_number(void);

/* --- handles (fake_handle.c) ----------------------------------------- */

typedef enum fake_handle_kind {
    FAKE_HANDLE_STREAM = 1,
    FAKE_HANDLE_EVENT,
    FAKE_HANDLE_LIBRARY,
    FAKE_HANDLE_KERNEL
} fake_handle_kind;

void fake_handle_add(const void *handle, fake_handle_kind kind);
void fake_handle_remove(const void *handle);
/* False for what was never a handle of this kind; aborts for one that has been destroyed. */
bool fake_handle_live(const char *call, const void *handle, fake_handle_kind kind);
long fake_handle_count(fake_handle_kind kind);
void fake_handle_clear(void);

/* --- memory (fake_memory.c) ------------------------------------------ */

fake_memory *fake_memory_find(const void *ptr);
/* NULL unless the range lies in one allocation of the kind. */
fake_memory *fake_memory_range(CUdeviceptr ptr, size_t size, fake_memory_kind kind);
/* Address for the GPU's accesses; ptr itself when it is not driver memory. */
char *fake_memory_gpu(const void *ptr);
void fake_memory_release(fake_memory *memory);
void fake_memory_release_context(fake_context *context);
void fake_memory_lock_host(bool locked);
long fake_memory_count(fake_memory_kind kind, unsigned long long *bytes);

/* --- pages (fake_pages.c, fake_evict.c) ------------------------------ */

bool fake_pages_init(fake_memory *memory);
void fake_pages_destroy(fake_memory *memory);
/* Brings the books up to date with what the host touched since. */
void fake_pages_reconcile(fake_memory *memory, size_t first, size_t count, uint8_t *present);
void fake_pages_set_owner(fake_memory *memory, size_t page, fake_place owner);
void fake_pages_set_replicas(fake_memory *memory, size_t page, uint8_t replicas);
void fake_pages_prefetch(fake_memory *memory, size_t offset, size_t size, fake_place where);
void fake_pages_discard(fake_memory *memory, size_t offset, size_t size);
void fake_pages_touch(fake_memory *memory, size_t offset, size_t size, int device, bool write);
/* What a device is about to read without a touch: takes in what the host has done to it. */
void fake_pages_settle(const void *ptr, size_t size);
void fake_pages_advise(fake_memory *memory, size_t offset, size_t size, CUmem_advise advice, fake_place where);
/* Makes room for `pages` more pages on the device by taking back what is held without need, then by moving the least
 * recently used blocks to the host; false when there is none. */
bool fake_evict(int device, size_t pages, const fake_block *keep);

/* --- streams (fake_queue.c, fake_stream.c) ----------------------------------------- */

fake_stream *fake_stream_new(fake_stream_kind kind, fake_context *context, bool blocking);
void fake_stream_unlink(fake_stream *stream);
/* For a test's handle: 0, 1 and 2 are streams of the device. Aborts when it is none. */
fake_stream *fake_stream_for_control(const char *name, uintptr_t stream, int device);
/* The stream behind a handle; NULL, with the code in call->result, when it cannot be used. */
fake_stream *fake_stream_of(fake_guard *call, CUstream handle);
fake_item *fake_item_new(fake_item_kind kind);
void fake_item_free(fake_item *item);
void fake_submit(fake_stream *stream, fake_item *item);
/* Runs the stream's items up to and including seq, and everything they depend on. */
void fake_run_until(fake_stream *stream, uint64_t seq);
bool fake_run_one(fake_stream *stream);
/* Runs all that synchronising with the stream waits for. */
void fake_run_stream(fake_stream *stream);
void fake_run_context(fake_context *context);
void fake_run_all_work(void);
void fake_work_finished(void);
void fake_record_unref(fake_record *record);
void fake_streams_release_context(fake_context *context);
void fake_streams_clear(void);
void fake_events_clear(void);
void fake_events_release_context(fake_context *context);

/* --- work (fake_work.c) ---------------------------------------------- */

/* Does what the item says, on the device of the stream it was queued on. */
void fake_execute(const fake_stream *stream, fake_item *item);
void fake_libraries_clear(void);

extern const fakecu_kernel_entry fake_test_kernels[];
extern const size_t fake_test_kernel_count;

#endif
