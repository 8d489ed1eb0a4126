#include "core/um_status.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void um_error_format(um_error *err, um_status status, const char *format, ...) {
    if (err == NULL) {
        return;
    }
    /* The arguments may point into *err (a caller that adds to a message), so it is overwritten last. */
    char message[sizeof(err->message)] = "";
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    memset(err, 0, sizeof(*err));
    err->status = status;
    err->limit = SIZE_MAX;
    err->device = -1;
    memcpy(err->message, message, sizeof(message));
}
