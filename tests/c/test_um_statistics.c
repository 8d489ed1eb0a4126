/* Counters, scopes and the log, with no Python: on the host backend. */
#include <stdlib.h>

#include "core/um_block.h"
#include "core/um_log.h"
#include "core/um_pool.h"
#include "kernels/um_kernel_image.h"
#include "um_test.h"

#define MIB ((size_t)1 << 20)

const um_kernel_image um_kernel_images[] = {{"none", NULL, 0}};
const size_t um_kernel_image_count = 0;

static um_context *ctx;

static bool start(void) {
    um_error err;
    return um_context_open(&(um_config){.backend = "host"}, &ctx, &err) == UM_OK;
}

static um_block *new_block(size_t size, um_location_kind home) {
    um_block *block = NULL;
    um_error err;
    UM_CHECK(um_block_new(ctx, size, 0, (um_location){home, 0}, &block, &err) == UM_OK);
    return block;
}

static void reserved_memory_is_the_sum_of_its_parts(void) {
    UM_REQUIRE(start());
    um_block *blocks[] = {new_block(1, UM_LOCATION_NONE), new_block(65535, UM_LOCATION_NONE),
                          new_block(65536, UM_LOCATION_NONE), new_block(3 * MIB, UM_LOCATION_HOST)};
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.small.blocks_current == 2 && stats.small.allocated_current == 65536);
    UM_CHECK(stats.large.blocks_current == 2 && stats.large.allocated_current == 65536 + 3 * MIB);
    UM_CHECK(stats.all.blocks_current == 4 && stats.blocks_current == 4);
    UM_CHECK(stats.reserved_current == stats.in_blocks + stats.split + stats.idle);
    UM_CHECK(stats.small.reserved_current + stats.large.reserved_current == stats.reserved_current);
    um_home_stats homes[2];
    UM_CHECK(um_pool_homes(ctx, 0, homes, 2) == 2);
    UM_CHECK(homes[0].allocated_current + homes[1].allocated_current == stats.allocated_current);
    UM_CHECK(um_pool_homes(ctx, UM_ALL_DEVICES, homes, 1) == 1);
    UM_CHECK(um_pool_largest_free(ctx, 0) > 0);
    for (int i = 0; i < 4; i++) um_block_unref(blocks[i]);
    um_pool_stats(ctx, 0, &stats);
    UM_CHECK(stats.allocated_current == 0 && stats.freed_total == 2 * 65536 + 3 * MIB);
    um_context_unref(ctx);
}

static void scopes_outlive_their_context(void) {
    UM_REQUIRE(start());
    um_scope *outer = um_pool_scope_new(ctx, UM_ALL_DEVICES), *inner = um_pool_scope_new(ctx, 0);
    UM_REQUIRE(outer && inner);
    um_block *block = new_block(MIB, UM_LOCATION_NONE);
    um_pool_scope_end(inner);
    um_block_unref(new_block(100, UM_LOCATION_NONE));
    um_context_unref(ctx);
    um_block_unref(block);
    um_scope_stats stats;
    um_pool_scope_read(inner, &stats);
    UM_CHECK(stats.allocated == MIB && stats.freed == 0 && stats.peak == MIB && stats.blocks_peak == 1);
    um_pool_scope_read(outer, &stats);
    UM_CHECK(stats.allocated == MIB + 100 && stats.freed == MIB + 100 && stats.peak == MIB + 100);
    UM_CHECK(stats.blocks_allocated == 2 && stats.blocks_freed == 2);
    um_pool_scope_free(outer);
    um_pool_scope_free(inner);
}

static void a_log_has_every_event_in_order(void) {
    UM_REQUIRE(start());
    um_error err;
    um_log_event *events;
    size_t count;
    bool complete;
    um_log_end(ctx, &events, &count, &complete);
    UM_CHECK(events == NULL && count == 0 && complete);
    um_block_unref(new_block(100, UM_LOCATION_NONE));
    UM_CHECK(um_log_begin(ctx, &err) == UM_OK);
    UM_CHECK(um_log_begin(ctx, &err) == UM_ERR_BUSY);
    for (int i = 0; i < 5000; i++) um_block_unref(new_block(100, i % 2 ? UM_LOCATION_HOST : UM_LOCATION_NONE));
    um_log_end(ctx, &events, &count, &complete);
    um_block_unref(new_block(100, UM_LOCATION_NONE));
    UM_REQUIRE(count == 10000 && complete);
    for (size_t i = 0; i < count; i += 2) {
        UM_CHECK(events[i].size == 100 && events[i + 1].size == 0);
        UM_CHECK(events[i].address == events[i + 1].address);
        UM_CHECK(events[i].home == (i / 2 % 2 ? UM_LOCATION_HOST : UM_LOCATION_NONE));
    }
    free(events);
    UM_CHECK(um_log_begin(ctx, &err) == UM_OK); /* nobody ends this one */
    um_block_unref(new_block(100, UM_LOCATION_NONE));
    um_context_unref(ctx);
}

int main(void) {
    UM_RUN(reserved_memory_is_the_sum_of_its_parts);
    UM_RUN(scopes_outlive_their_context);
    UM_RUN(a_log_has_every_event_in_order);
    return um_test_result();
}
