/* The host's NUMA nodes, and which of them pages are made on. */
#ifndef UM_NUMA_H
#define UM_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UM_NUMA_MOST 1024 /* nodes that Linux can have */

typedef struct um_numa {
    uint64_t nodes[UM_NUMA_MOST / 64]; /* bit n: node n is there */
    int count;                         /* nodes, at least 1 */
    bool off;                          /* pages are not sent next to a GPU by themselves */
    /* Asks the system to make the pages of a range, which are whole, on a node: 0, or -1 when it will not. um_numa_bind. */
    int (*bind)(void *ptr, size_t size, int node);
} um_numa;

/* Fills *out from a list as in /sys/devices/system/node/online, like "0-1,4"; NULL: from that file. Node 0 alone where neither
 * says anything. */
void um_numa_read(um_numa *out, const char *nodes);
bool um_numa_has(const um_numa *numa, int node);
/* Pages that lie in the range whole, and do not exist yet, shall be made on that node while it has room. Does nothing where
 * there is one node only, or no such node. It is about speed only, so a system may refuse. */
void um_numa_place(const um_numa *numa, void *ptr, size_t size, int node);
int um_numa_bind(void *ptr, size_t size, int node);

#endif
