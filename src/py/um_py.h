/* Included first by every file of src/py: Python and NumPy, configured once. */
#ifndef UM_PY_H
#define UM_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* One NumPy API table for the extension; um_module.c imports it. */
#define PY_ARRAY_UNIQUE_SYMBOL um_numpy_api
#ifndef UM_PY_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

/* In a build of CPython without the GIL a critical section on an object is what holding the GIL is elsewhere: other threads stay out of
 * sections on that object until this one ends or the thread waits for something. Elsewhere it is nothing. */
#ifndef Py_BEGIN_CRITICAL_SECTION /* CPython before 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION()         }
#endif

/* A function of any METH_ signature as PyMethodDef wants it. */
#define UM_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif
