/* Where the pages of a block are, from the host's page table and what umem did itself.
 *
 * A page that the host maps is on the host. A page it does not map is on a GPU if it was ever populated, untouched if
 * nothing can have populated it, and unknown otherwise (another library's kernel may have).
 */
#ifndef UM_RESIDENCY_H
#define UM_RESIDENCY_H

#include "core/um_block.h"

typedef enum um_page_state {
    UM_PAGE_UNTOUCHED = 0,
    UM_PAGE_HOST = 1,
    UM_PAGE_DEVICE = 2,
    UM_PAGE_UNKNOWN = 3,
} um_page_state;

/* Bytes of a host page. */
size_t um_page_size(void);

/* Number of pages that [offset, offset + size) of the block touches. */
size_t um_residency_page_count(const um_block *block, size_t offset, size_t size);

/* One um_page_state per page that the range touches. Waits for nothing: work in flight may move pages meanwhile. */
UM_MUST_CHECK um_status um_residency_scan(um_block *block, size_t offset, size_t size, unsigned char *states,
                                          um_error *err);

#endif
