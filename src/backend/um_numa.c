#define _GNU_SOURCE 1 /* syscall */
#include "backend/um_numa.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ONLINE    "/sys/devices/system/node/online"
#define WORD_BITS (8 * sizeof(unsigned long))

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void add_node(um_numa *numa, unsigned long node) {
    uint64_t bit = (uint64_t)1 << node % 64;
    numa->count += (numa->nodes[node / 64] & bit) == 0;
    numa->nodes[node / 64] |= bit;
}

/* Up to the first thing that is no number. */
static void parse_nodes(um_numa *numa, const char *text) {
    while (is_digit(*text)) {
        char *end = NULL;
        unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (end[0] == '-' && is_digit(end[1])) {
            last = strtoul(end + 1, &end, 10);
        }
        for (unsigned long node = first; node <= last && node < UM_NUMA_MOST; ++node) {
            add_node(numa, node);
        }
        text = *end == ',' ? end + 1 : end;
    }
}

void um_numa_read(um_numa *out, const char *nodes) {
    *out = (um_numa){.bind = um_numa_bind};
    char line[512] = "";
    FILE *file = nodes == NULL ? fopen(ONLINE, "re") : NULL;
    if (file != NULL) {
        if (fgets(line, (int)sizeof(line), file) == NULL) {
            line[0] = '\0';
        }
        (void)fclose(file);
    }
    parse_nodes(out, nodes != NULL ? nodes : line);
    if (out->count == 0) {
        add_node(out, 0);
    }
}

bool um_numa_has(const um_numa *numa, int node) {
    return node >= 0 && node < UM_NUMA_MOST && (numa->nodes[node / 64] >> node % 64 & 1) != 0;
}

void um_numa_place(const um_numa *numa, void *ptr, size_t size, int node) {
    uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t first = ((uintptr_t)ptr + mask) & ~mask;
    uintptr_t last = ((uintptr_t)ptr + size) & ~mask;
    if (numa->count > 1 && um_numa_has(numa, node) && first < last) {
        (void)numa->bind((void *)first, last - first, node);
    }
}

int um_numa_bind(void *ptr, size_t size, int node) {
    unsigned long mask[UM_NUMA_MOST / WORD_BITS] = {0};
    mask[(unsigned)node / WORD_BITS] = 1UL << (unsigned)node % WORD_BITS;
    /* Preferred, and not bound to it: a full node must not end the process. The system reads one bit less than it is told of. */
    return (int)syscall(SYS_mbind, ptr, size, MPOL_PREFERRED, mask, (unsigned long)UM_NUMA_MOST + 1, 0);
}
