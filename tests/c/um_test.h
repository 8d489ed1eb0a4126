/* Checks for the C tests. A test program calls UM_RUN for each of its functions and returns um_test_result().
 *
 * A failed check is printed and counted, and the test goes on; UM_REQUIRE ends the function it stands in.
 */
#ifndef UM_TEST_H
#define UM_TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int um_test_failures;
static const char *um_test_name = "";

#define UM_TEST_SKIPPED 77 /* exit status of a program that could not test here, as automake and meson read it */

static inline bool um_test_check(bool holds, const char *text, const char *file, int line) {
    if (!holds) {
        ++um_test_failures;
        printf("%s:%d: %s: failed: %s\n", file, line, um_test_name, text);
    }
    return holds;
}

static inline void um_test_contains(const char *text, const char *part, const char *file, int line) {
    if (text == NULL || strstr(text, part) == NULL) {
        ++um_test_failures;
        printf("%s:%d: %s: \"%s\" does not contain \"%s\"\n", file, line, um_test_name, text != NULL ? text : "(null)",
               part);
    }
}

static inline int um_test_result(void) {
    if (um_test_failures > 0) {
        printf("%d checks failed\n", um_test_failures);
        return 1;
    }
    printf("ok\n");
    return 0;
}

/* Random tests run every nth of their rounds: 1, or what UMEM_TEST_STEP says, where a processor is simulated. */
static inline int um_test_step(void) {
    const char *text = getenv("UMEM_TEST_STEP");
    const int step = text != NULL ? atoi(text) : 1;
    return step > 0 ? step : 1;
}

/* Ends a forked child, once it has written what branches it took. */
#ifdef UM_COVERAGE
void __gcov_dump(void);
#define um_test_exit(status) (__gcov_dump(), _exit(status))
#else
#define um_test_exit(status) _exit(status)
#endif

#define UM_CHECK(condition)           ((void)um_test_check((condition), #condition, __FILE__, __LINE__))
#define UM_CHECK_CONTAINS(text, part) um_test_contains((text), (part), __FILE__, __LINE__)
/* The one macro that returns: what follows would crash without it. */
#define UM_REQUIRE(condition)                                                                                          \
    do {                                                                                                               \
        if (!um_test_check((condition), #condition, __FILE__, __LINE__)) {                                             \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define UM_RUN(test)                                                                                                   \
    do {                                                                                                               \
        um_test_name = #test;                                                                                          \
        test();                                                                                                        \
    } while (0)

#endif
