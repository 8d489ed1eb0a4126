/* For includers that define something for each kernel of um_kernel_ops.h: the UM_FORM_… of um_kernel_loops.h in terms of
 * UM_DEFINE_LOOP(weight, name, token, inputs, token of the result, expression), which they define. Entries without a kernel of their own
 * come to nothing.
 */
#ifndef UM_KERNEL_FORMS_H
#define UM_KERNEL_FORMS_H

#include "kernels/um_kernel_loops.h"

#define UM_FORM_SAME(weight, name, inputs, token, expression)                                                          \
    UM_DEFINE_LOOP(weight, name, token, inputs, token, expression)
#define UM_FORM_TRUTH(weight, name, inputs, token, expression)                                                         \
    UM_DEFINE_LOOP(weight, name, token, inputs, b1, expression)
#define UM_FORM_REAL(weight, name, inputs, token, expression)                                                          \
    UM_FORM_REAL_(weight, name, inputs, token, UM_REAL_##token, expression)
#define UM_FORM_REAL_(weight, name, inputs, token, real, expression)                                                   \
    UM_FORM_REAL__(weight, name, inputs, token, real, expression)
#define UM_FORM_REAL__(weight, name, inputs, token, real, expression)                                                  \
    UM_DEFINE_LOOP(weight, name, token, inputs, real, expression)
#define UM_FORM_WIDE(weight, name, inputs, token, expression)                                                          \
    UM_WIDE_##token(UM_DEFINE_LOOP(weight, name, token, inputs, token, expression))
#define UM_FORM_NONE(...)
#define UM_FORM_UNSIGNED(...)
#define UM_FORM_AS(...)
#define UM_FORM_SWAP(...)
#define UM_FORM_ROTATE(...)
#define UM_FORM_COPY(...)
#define UM_FORM_YES(...)
#define UM_FORM_NO(...)

#endif
