/* Every elementwise operation, once. Expanded by the CUDA kernels, the launch table, the Python functions and the fake driver.
 *
 *   UM_OP(name, inputs, float_expr, int_expr, int_result)
 *
 * name        NumPy's ufunc name, or the name of a fused form NumPy lacks
 * inputs      number of inputs: a, b, c of the loop's type T
 * float_expr  C expression for float32 and float64
 * int_expr    C expression for int32 and int64 (integers wrap: arithmetic is done in the unsigned type U)
 * int_result  SAME, or NONE when integers have no loop of their own (NumPy converts them to float64 first)
 */
/* clang-format off */
#ifndef UM_OP
#error "define UM_OP before including um_kernel_ops.h"
#endif
UM_OP(add,         2, (a + b),                (T)((U)a + (U)b),           SAME)
UM_OP(subtract,    2, (a - b),                (T)((U)a - (U)b),           SAME)
UM_OP(multiply,    2, (a * b),                (T)((U)a * (U)b),           SAME)
UM_OP(true_divide, 2, (a / b),                0,                          NONE)
UM_OP(negative,    1, (-a),                   (T)((U)0 - (U)a),           SAME)
UM_OP(axpy,        3, UM_FMA(a, b, c),        (T)((U)a * (U)b + (U)c),    SAME)
/* clang-format on */
