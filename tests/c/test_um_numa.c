/* NUMA: reading the list of nodes, and what is asked of the system for a range. */
#define _GNU_SOURCE 1 /* mmap, syscall */
#include "backend/um_numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "um_test.h"

static struct {
    int count, node, result;
    char *ptr;
    size_t size;
} asked;

static int note(void *ptr, size_t size, int node) {
    ++asked.count;
    asked.ptr = ptr;
    asked.size = size;
    asked.node = node;
    return asked.result;
}

static void lists_are_read(void) {
    static const struct {
        const char *text;
        int count;
        uint64_t nodes; /* the first 64 */
    } cases[] = {
        {"0", 1, 1},
        {"0\n", 1, 1},
        {"0-1\n", 2, 3},
        {"0,2", 2, 5},
        {"1-3,5", 4, 0x2e},
        {"0-1,1-2", 3, 7},
        {"", 1, 1},
        {"none", 1, 1},
        {"0-", 1, 1},
        {"3-1", 1, 1},
        {"0-5000", 1024, ~0ULL},
        {"0,9999", 1, 1},
        {"63", 1, 1ULL << 63},
        {"1;7", 1, 2},
        {"99999999999999999999999", 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        um_numa numa;
        um_numa_read(&numa, cases[i].text);
        if (numa.count != cases[i].count || numa.nodes[0] != cases[i].nodes) {
            printf("\"%s\": %d nodes, the first 64 %#llx\n", cases[i].text, numa.count,
                   (unsigned long long)numa.nodes[0]);
            UM_CHECK(!"the list");
        }
        UM_CHECK(!numa.off && numa.bind == um_numa_bind);
    }
    um_numa numa;
    um_numa_read(&numa, "1-2,1023");
    UM_CHECK(!um_numa_has(&numa, 0) && um_numa_has(&numa, 1) && um_numa_has(&numa, 2) && um_numa_has(&numa, 1023));
    UM_CHECK(!um_numa_has(&numa, -1) && !um_numa_has(&numa, 1024));
}

static void this_host_has_a_node(void) {
    um_numa numa;
    um_numa_read(&numa, NULL);
    UM_CHECK(numa.count >= 1);
    int found = 0;
    for (int node = 0; node < UM_NUMA_MOST; ++node) {
        found += um_numa_has(&numa, node);
    }
    UM_CHECK(found == numa.count);
}

static void whole_pages_of_nodes_that_are_there_are_asked_for(void) {
    char *page = NULL;
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    um_numa numa;
    um_numa_read(&numa, "0,3");
    numa.bind = note;
    memset(&asked, 0, sizeof(asked));
    um_numa_place(&numa, page + 4 * size, 2 * size, 3);
    UM_CHECK(asked.count == 1 && asked.node == 3 && asked.ptr == page + 4 * size && asked.size == 2 * size);
    um_numa_place(&numa, page + 4 * size + 1, 3 * size, 0); /* what others have a part of stays as it is */
    UM_CHECK(asked.count == 2 && asked.node == 0 && asked.ptr == page + 5 * size && asked.size == 2 * size);
    um_numa_place(&numa, page + 4 * size + 1, size, 0);
    um_numa_place(&numa, page + 4 * size + 1, 10, 0);
    um_numa_place(&numa, page + 4 * size, size, 1);
    um_numa_place(&numa, page + 4 * size, size, -1);
    UM_CHECK(asked.count == 2);
    asked.result = -1; /* nobody minds */
    um_numa_place(&numa, page + 4 * size, size, 3);
    UM_CHECK(asked.count == 3);
    um_numa_read(&numa, "3");
    numa.bind = note;
    um_numa_place(&numa, page + 4 * size, size, 3); /* there is no choice */
    UM_CHECK(asked.count == 3);
}

static void binding_sets_a_preference(void) {
    size_t size = 4 * (size_t)sysconf(_SC_PAGESIZE);
    char *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    UM_REQUIRE(ptr != MAP_FAILED);
    um_numa here;
    um_numa_read(&here, NULL);
    int node = 0;
    while (!um_numa_has(&here, node)) {
        ++node;
    }
    if (um_numa_bind(ptr, size, node) != 0) {
        UM_CHECK(errno == EPERM || errno == ENOSYS); /* a sandbox without the call */
    } else {
        int mode = -1;
        unsigned long nodes[UM_NUMA_MOST / 64] = {0};
        UM_CHECK(syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)UM_NUMA_MOST, ptr, MPOL_F_ADDR) == 0);
        UM_CHECK(mode == MPOL_PREFERRED && nodes[node / 64] == 1UL << node % 64);
        UM_CHECK(um_numa_bind(ptr, size, UM_NUMA_MOST - 1) == -1);
    }
    memset(ptr, 1, size);
    UM_CHECK(munmap(ptr, size) == 0);
}

int main(void) {
    UM_RUN(lists_are_read);
    UM_RUN(this_host_has_a_node);
    UM_RUN(whole_pages_of_nodes_that_are_there_are_asked_for);
    UM_RUN(binding_sets_a_preference);
    return um_test_result();
}
