/* Where memory may live: the host, a GPU, or one NUMA node of the host. */
#ifndef UM_LOCATION_H
#define UM_LOCATION_H

#include <stdbool.h>

typedef enum um_location_kind {
    UM_LOCATION_NONE = 0, /* no preference */
    UM_LOCATION_HOST,     /* "cpu" */
    UM_LOCATION_DEVICE,   /* "cuda:<id>" */
    UM_LOCATION_NUMA,     /* "numa:<id>" */
} um_location_kind;

typedef struct um_location {
    um_location_kind kind;
    int id; /* device ordinal or NUMA node; 0 for the other kinds */
} um_location;

static inline bool um_location_equal(um_location a, um_location b) { return a.kind == b.kind && a.id == b.id; }

/* True for the host as a whole and for one of its NUMA nodes. */
static inline bool um_location_is_host(um_location where) {
    return where.kind == UM_LOCATION_HOST || where.kind == UM_LOCATION_NUMA;
}

#endif
