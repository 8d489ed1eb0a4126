/* Reaches the control functions of the fake CUDA driver (tests/fake_cuda/fake_cuda.h) in the library that
 * UMEM_CUDA_LIBRARY names: the same copy of it that um_driver_open loads.
 *
 *   FAKE(fakecu_set_version)(12000);
 */
#ifndef UM_FAKE_H
#define UM_FAKE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../fake_cuda/fake_cuda.h"

static void *um_fake_library;

/* False when the variable is not set or names something else, such as a real driver. */
static inline bool um_fake_open(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    um_fake_library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return um_fake_library != NULL && dlsym(um_fake_library, "fakecu_shutdown") != NULL;
}

static inline void um_fake_close(void) {
    if (um_fake_library != NULL) {
        (void)dlclose(um_fake_library);
    }
}

#define FAKE(function) ((__typeof__(&(function)))dlsym(um_fake_library, #function))

#endif
