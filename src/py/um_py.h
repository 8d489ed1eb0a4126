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

/* A function of any METH_ signature as PyMethodDef wants it. */
#define UM_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif
