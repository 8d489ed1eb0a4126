/* Opening the driver library: what fails and what the error says. With UMEM_CUDA_LIBRARY (the fake, or a real driver)
 * also that it opens, fills its table and closes. */
#define _GNU_SOURCE 1 /* mkstemp */
#include "driver/um_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "um_fake.h"
#include "um_test.h"

static um_driver *const untouched = (um_driver *)8;

static void fails_to_open(const char *path, um_error *err) {
    um_driver *driver = untouched;
    memset(err, 0xff, sizeof(*err));
    UM_CHECK(um_driver_open(path, &driver, err) == UM_ERR_NO_DRIVER);
    UM_CHECK(driver == untouched);
    UM_CHECK(err->status == UM_ERR_NO_DRIVER);
    UM_CHECK(err->cuda_code == 0);
    UM_CHECK(err->device == -1);
    UM_CHECK(memchr(err->message, 0, sizeof(err->message)) != NULL);
    driver = untouched;
    UM_CHECK(um_driver_open(path, &driver, NULL) == UM_ERR_NO_DRIVER);
    UM_CHECK(driver == untouched);
}

static void error_set_formats_and_resets(void) {
    um_error err;
    memset(&err, 0xff, sizeof(err));
    UM_CHECK(um_error_set(&err, UM_ERR_VALUE, "%s is %d", "x", 3) == UM_ERR_VALUE);
    UM_CHECK(strcmp(err.message, "x is 3") == 0);
    UM_CHECK(err.status == UM_ERR_VALUE);
    UM_CHECK(err.cuda_code == 0 && err.call == NULL && err.name[0] == '\0');
    UM_CHECK(err.requested == 0 && err.in_use == 0 && err.limit == SIZE_MAX && err.device == -1);
}

static void error_set_takes_its_own_message(void) {
    um_error err;
    (void)um_error_set(&err, UM_ERR_VALUE, "inner");
    (void)um_error_set(&err, UM_ERR_TYPE, "outer: %s", err.message);
    UM_CHECK(strcmp(err.message, "outer: inner") == 0);
}

static void error_set_cuts_long_messages(void) {
    char text[2000];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    um_error err;
    (void)um_error_set(&err, UM_ERR_VALUE, "%s", text);
    UM_CHECK(strlen(err.message) == sizeof(err.message) - 1);
    UM_CHECK(um_error_set(NULL, UM_ERR_BUSY, "%s", text) == UM_ERR_BUSY);
}

static void names_are_the_symbols(void) {
    UM_CHECK(strcmp(um_driver_call_names.init, "cuInit") == 0);
    UM_CHECK(strcmp(um_driver_call_names.mem_prefetch_location, "cuMemPrefetchAsync") == 0);
    UM_CHECK(strcmp(um_driver_call_names.launch_kernel, "cuLaunchKernel") == 0);
}

/* What um_driver_error makes of a driver that cannot even name its errors. */
static void errors_without_names(void) {
    um_driver empty;
    memset(&empty, 0, sizeof(empty));
    um_error err;
    UM_CHECK(um_driver_error(&empty, CUDA_ERROR_INVALID_VALUE, "cuX", &err) == UM_ERR_CUDA);
    UM_CHECK(err.cuda_code == CUDA_ERROR_INVALID_VALUE);
    UM_CHECK(strcmp(err.call, "cuX") == 0);
    UM_CHECK_CONTAINS(err.name, "CUresult 1");
    UM_CHECK_CONTAINS(err.message, "cuX failed");
    UM_CHECK(um_driver_error(&empty, CUDA_ERROR_OUT_OF_MEMORY, "cuX", &err) == UM_ERR_OUT_OF_MEMORY);
    UM_CHECK(err.cuda_code == 0 && err.requested == 0);
    UM_CHECK(um_driver_error(&empty, CUDA_ERROR_OUT_OF_MEMORY, "cuX", NULL) == UM_ERR_OUT_OF_MEMORY);
}

static void a_missing_file_is_named(void) {
    um_error err;
    fails_to_open("/nonexistent/libcuda.so.1", &err);
    UM_CHECK_CONTAINS(err.message, "/nonexistent/libcuda.so.1");
    UM_CHECK_CONTAINS(err.message, "No such file");
}

static void a_very_long_path_is_survived(void) {
    char path[3000];
    memset(path, 'p', sizeof(path) - 1);
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    um_error err;
    fails_to_open(path, &err);
}

static void a_file_that_is_no_library(void) {
    char path[] = "/tmp/um_test_XXXXXX";
    int file = mkstemp(path);
    UM_REQUIRE(file >= 0);
    UM_CHECK(write(file, "not a library\n", 14) == 14);
    (void)close(file);
    um_error err;
    fails_to_open(path, &err);
    UM_CHECK_CONTAINS(err.message, path);
    (void)unlink(path);
}

static void a_library_that_is_no_driver(void) {
    um_error err;
    fails_to_open("libm.so.6", &err);
    UM_CHECK_CONTAINS(err.message, "libm.so.6 is not a CUDA driver");
}

/* The toolkit ships a libcuda.so that only links: a common accident with LD_LIBRARY_PATH. UMEM_TEST_STUB names it. */
static void the_stub_library_is_recognised(void) {
    const char *stub = getenv("UMEM_TEST_STUB");
    if (stub == NULL) {
        return;
    }
    um_error err;
    fails_to_open(stub, &err);
    UM_CHECK_CONTAINS(err.message, "stub");
}

/* Only where there is no driver: says what was tried and what to do. */
static void no_driver_says_what_was_tried(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);
    }
    if (library != NULL) {
        (void)dlclose(library);
        return;
    }
    um_error err;
    fails_to_open(NULL, &err);
    UM_CHECK_CONTAINS(err.message, "libcuda.so.1");
    UM_CHECK_CONTAINS(err.message, "libcuda.so (");
    UM_CHECK_CONTAINS(err.message, "UMEM_CUDA_LIBRARY");
}

static void closing_nothing_is_fine(void) { um_driver_close(NULL); }

/* --- with a driver ------------------------------------------------------------------------------------------ */

static void opens_twice_and_closes(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    um_driver *first = NULL;
    um_driver *second = NULL;
    um_error err;
    UM_REQUIRE(um_driver_open(path, &first, &err) == UM_OK);
    UM_CHECK(first->version >= 12000);
    UM_CHECK(first->device_count > 0);
    UM_CHECK(path == NULL || strcmp(first->path, path) == 0);
    UM_CHECK(um_driver_open(path, &second, &err) == UM_OK);
    UM_CHECK(um_driver_error(first, CUDA_ERROR_INVALID_VALUE, "cuX", &err) == UM_ERR_CUDA);
    UM_CHECK(strcmp(err.name, "CUDA_ERROR_INVALID_VALUE") == 0);
    UM_CHECK(um_driver_error(first, (CUresult)123456, "cuX", &err) == UM_ERR_CUDA);
    UM_CHECK(err.cuda_code == 123456);
    um_driver_close(first);
    int count = 0;
    UM_CHECK(second->device_get_count(&count) == CUDA_SUCCESS && count == second->device_count);
    um_driver_close(second);
}

static void fake_driver_that_is_too_old(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_version)(11080);
    um_error err;
    fails_to_open(path, &err);
    UM_CHECK_CONTAINS(err.message, "too old");
    UM_CHECK_CONTAINS(err.message, "11.8");
    UM_CHECK_CONTAINS(err.message, "12.0");
    FAKE(fakecu_shutdown)();
}

static void fake_driver_without_optional_calls(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_version)(12000);
    um_driver *driver = NULL;
    um_error err;
    UM_REQUIRE(um_driver_open(path, &driver, &err) == UM_OK);
    UM_CHECK(driver->version == 12000);
    UM_CHECK(driver->mem_prefetch_batch == NULL);
    UM_CHECK(driver->mem_discard_batch == NULL);
    UM_CHECK(driver->mem_prefetch_location == NULL);
    UM_CHECK(driver->mem_advise_location == NULL);
    UM_CHECK(driver->mem_prefetch_device != NULL);
    um_driver_close(driver);
    FAKE(fakecu_shutdown)();
}

static void fake_driver_without_a_required_call(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_missing)("cuLibraryLoadData");
    um_error err;
    fails_to_open(path, &err);
    UM_CHECK_CONTAINS(err.message, "cuLibraryLoadData");
    FAKE(fakecu_shutdown)();
}

static void fake_driver_without_devices(void) {
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_devices)(0);
    um_error err;
    fails_to_open(path, &err);
    UM_CHECK_CONTAINS(err.message, "no CUDA device is visible");
    FAKE(fakecu_shutdown)();
}

static void fake_init_failures_are_explained(void) {
    static const struct {
        CUresult code;
        const char *name;
        const char *hint;
    } cases[] = {
        {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"},
        {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "nvidia_uvm"},
    };
    const char *path = getenv("UMEM_CUDA_LIBRARY");
    FAKE(fakecu_shutdown)();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        FAKE(fakecu_fail)("cuInit", 1, (int)cases[i].code, 1);
        um_error err;
        fails_to_open(path, &err);
        UM_CHECK_CONTAINS(err.message, cases[i].name);
        UM_CHECK_CONTAINS(err.message, cases[i].hint);
        UM_CHECK(strcmp(err.name, cases[i].name) == 0);
        UM_CHECK(err.call != NULL && strcmp(err.call, "cuInit") == 0);
        FAKE(fakecu_reset)();
    }
    FAKE(fakecu_shutdown)();
}

int main(void) {
    UM_RUN(error_set_formats_and_resets);
    UM_RUN(error_set_takes_its_own_message);
    UM_RUN(error_set_cuts_long_messages);
    UM_RUN(names_are_the_symbols);
    UM_RUN(errors_without_names);
    UM_RUN(a_missing_file_is_named);
    UM_RUN(a_very_long_path_is_survived);
    UM_RUN(a_file_that_is_no_library);
    UM_RUN(a_library_that_is_no_driver);
    UM_RUN(the_stub_library_is_recognised);
    UM_RUN(no_driver_says_what_was_tried);
    UM_RUN(closing_nothing_is_fine);
    if (getenv("UMEM_CUDA_LIBRARY") != NULL) {
        UM_RUN(opens_twice_and_closes);
    }
    if (um_fake_open()) {
        UM_RUN(fake_driver_that_is_too_old);
        UM_RUN(fake_driver_without_optional_calls);
        UM_RUN(fake_driver_without_a_required_call);
        UM_RUN(fake_driver_without_devices);
        UM_RUN(fake_init_failures_are_explained);
    }
    um_fake_close();
    return um_test_result();
}
