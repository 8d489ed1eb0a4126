/* Makes calls fail that umem's extension makes into CPython, NumPy and libc: the counterpart of the fake driver's faults.
 *
 * The extension reaches CPython and libc through its global offset table, and NumPy through a table of pointers.
 * failing_calls_hook puts wrappers into both. A wrapper fails as the function does when memory runs out, if the calling
 * thread has asked for it by failing_calls_arm. Calls that others make, NumPy and the interpreter too, are never touched.
 */
#define _GNU_SOURCE
#include <Python.h>

/* What the macros of the header read: each entry is its own index. */
#define PY_ARRAY_UNIQUE_SYMBOL failing_calls_indices
#define NPY_NO_DEPRECATED_API  NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION     NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* clang-format does not settle on how to break these lists. */
/* clang-format off */

/* How a function fails, and what it then returns. */
#define NULL_RETURNED(CALL)                                                                                            \
    CALL(PyBytes_FromStringAndSize) CALL(PyCapsule_New) CALL(PyContextVar_New) CALL(PyDescr_NewMethod)                 \
    CALL(PyDict_Copy) CALL(PyDict_GetItemWithError) CALL(PyDict_New) CALL(PyErr_NewExceptionWithDoc)                   \
    CALL(PyImport_ImportModule) CALL(PyList_AsTuple) CALL(PyList_New) CALL(PyLong_FromLong) CALL(PyLong_FromSize_t)    \
    CALL(PyLong_FromSsize_t) CALL(PyLong_FromUnsignedLongLong) CALL(PyLong_FromVoidPtr) CALL(PyNumber_Float)           \
    CALL(PyNumber_Index) CALL(PyNumber_Long) CALL(PyObject_Call) CALL(PyObject_CallNoArgs) CALL(PyObject_CallOneArg)   \
    CALL(PyObject_GetAttr) CALL(PyObject_GetAttrString) CALL(PyObject_GetItem) CALL(PyObject_Vectorcall)               \
    CALL(PyObject_VectorcallDict) CALL(PySeqIter_New) CALL(PySequence_GetItem) CALL(PySequence_Tuple)                  \
    CALL(PyTuple_New) CALL(PyTuple_Pack) CALL(PyType_FromModuleAndSpec) CALL(PyUnicode_AsUTF8)                         \
    CALL(PyUnicode_AsUTF8AndSize) CALL(PyUnicode_DecodeFSDefault) CALL(PyUnicode_DecodeUTF8)                           \
    CALL(PyUnicode_FromFormat) CALL(PyUnicode_FromString) CALL(PyUnicode_InternFromString)                             \
    CALL(_PyArg_ParseTupleAndKeywords_SizeT) CALL(PyArg_ParseTupleAndKeywords) CALL(_PyObject_CallMethod_SizeT)        \
    CALL(PyObject_CallMethod) CALL(_PyObject_GC_New)

#define MINUS_ONE_RETURNED(CALL)                                                                                       \
    CALL(PyCapsule_SetContext) CALL(PyCapsule_SetDestructor) CALL(PyCapsule_SetName) CALL(PyContextVar_Get)            \
    CALL(PyDict_SetItem) CALL(PyDict_SetItemString) CALL(PyList_Append) CALL(PyLong_AsSize_t) CALL(PyLong_AsUnsignedLong) CALL(PyLong_AsSsize_t)   \
    CALL(PyModule_AddFunctions) CALL(PyModule_AddObjectRef) CALL(PyModule_AddStringConstant) CALL(PyModule_AddType)    \
    CALL(PyNumber_AsSsize_t) CALL(PyObject_GetBuffer) CALL(PyObject_IsTrue) CALL(PyObject_SetAttr)                     \
    CALL(PyObject_SetAttrString) CALL(PyObject_SetItem) CALL(PySequence_Contains) CALL(PySlice_Unpack)                 \
    CALL(PyUnicode_Compare)

/* They take over references to arguments whatever happens: do the work, then throw it away. */
#define RESULT_DISCARDED(CALL)                                                                                         \
    CALL(_Py_BuildValue_SizeT) CALL(Py_BuildValue)

/* They fail for what has to be made an int first, and set *overflow to 0 then. */
#define SET_OVERFLOW(CALL)                                                                                             \
    CALL(PyLong_AsLongAndOverflow) CALL(PyLong_AsLongLongAndOverflow)

#define NULL_WITHOUT_EXCEPTION(CALL)                                                                                   \
    CALL(PyMem_Malloc) CALL(malloc) CALL(calloc) CALL(realloc) CALL(aligned_alloc) CALL(fopen) CALL(fopen64)            \
    CALL(fgets) CALL(tsearch)

#define MINUS_ONE_WITHOUT_EXCEPTION(CALL)                                                                              \
    CALL(mmap) CALL(madvise) CALL(mincore) CALL(open) CALL(open64) CALL(pread) CALL(pread64) CALL(getdelim)            \
    CALL(__getdelim)

#define ERROR_NUMBER_RETURNED(CALL)                                                                                    \
    CALL(pthread_mutex_init) CALL(pthread_cond_init) CALL(__register_atfork)

#define OF_THEIR_OWN(CALL)                                                                                             \
    CALL(PyUnicode_AppendAndDel) CALL(_PyTuple_Resize)

/* PyArray_ is left out, since the full names are macros. */
#define NUMPY_NULL_RETURNED(CALL)                                                                                      \
    CALL(DescrConverter) CALL(DescrFromType) CALL(DescrNew) CALL(DescrNewFromType) CALL(IntTupleFromIntp)              \
    CALL(IntpConverter) CALL(NewCopy) CALL(OrderConverter) CALL(Scalar)

#define NUMPY_MINUS_ONE_RETURNED(CALL)                                                                                 \
    CALL(CopyInto) CALL(CopyObject) CALL(FillWithScalar) CALL(Pack)

#define NUMPY_RESULT_DISCARDED(CALL)                                                                                   \
    CALL(FromAny) CALL(NewFromDescr)

#define NUMPY_OF_THEIR_OWN(CALL)                                                                                       \
    CALL(SetBaseObject)

#define NUMPY(CALL)                                                                                                    \
    NUMPY_NULL_RETURNED(CALL) NUMPY_MINUS_ONE_RETURNED(CALL) NUMPY_RESULT_DISCARDED(CALL) NUMPY_OF_THEIR_OWN(CALL)

#define BY_NAME(CALL)                                                                                                  \
    NULL_RETURNED(CALL) MINUS_ONE_RETURNED(CALL) RESULT_DISCARDED(CALL) SET_OVERFLOW(CALL)                             \
    NULL_WITHOUT_EXCEPTION(CALL) MINUS_ONE_WITHOUT_EXCEPTION(CALL) ERROR_NUMBER_RETURNED(CALL) OF_THEIR_OWN(CALL)

/* CPython's functions that cannot fail, or whose failure is none of umem's. A new one belongs here or above. */
#define CANNOT_FAIL(CALL)                                                                                              \
    CALL(PyBool_FromLong) CALL(PyBuffer_Release) CALL(PyCallable_Check) CALL(PyCapsule_GetContext)                     \
    CALL(PyCapsule_GetName) CALL(PyCapsule_GetPointer) CALL(PyCapsule_IsValid) CALL(PyDict_Next) CALL(PyErr_Clear)     \
    CALL(PyErr_ExceptionMatches) CALL(PyErr_Fetch) CALL(PyErr_Format) CALL(PyErr_GetRaisedException)                   \
    CALL(PyErr_NoMemory) CALL(PyErr_Occurred) CALL(PyErr_Print) CALL(PyErr_Restore) CALL(PyErr_SetObject)              \
    CALL(PyErr_SetRaisedException) CALL(PyErr_SetString) CALL(PyEval_RestoreThread) CALL(PyEval_SaveThread)            \
    CALL(PyGC_Collect) CALL(PyGILState_Check) CALL(PyGILState_Ensure) CALL(PyGILState_Release) CALL(PyIndex_Check)     \
    CALL(PyMem_Free) CALL(PyMem_RawFree) CALL(PyModuleDef_Init) CALL(PyModule_GetState) CALL(PyOS_snprintf)            \
    CALL(PyObject_CheckBuffer) CALL(PyObject_ClearWeakRefs) CALL(PyObject_GC_Del) CALL(PyObject_GC_Track)              \
    CALL(PyObject_GC_UnTrack) CALL(PyObject_Init) CALL(PySequence_Size) CALL(PySlice_AdjustIndices)                    \
    CALL(PyErr_CheckSignals) CALL(PyErr_NormalizeException) CALL(PyException_GetTraceback) CALL(PyException_SetTraceback)        \
    CALL(PyInterpreterState_Get) CALL(PyInterpreterState_Main) CALL(Py_AddPendingCall) CALL(PyThread_get_thread_ident) CALL(PyType_GetModule) CALL(PyType_GetModuleState)                                 \
    CALL(PyType_IsSubtype) CALL(PyUnicode_CompareWithASCIIString) CALL(Py_IsInitialized) CALL(_Py_Dealloc)             \
    CALL(_Py_IsFinalizing) CALL(Py_IsFinalizing) CALL(PyComplex_AsCComplex) CALL(PyLong_AsUnsignedLongLong) /* of exact types */

/* clang-format on */

enum {
#define ENTRY(name) CALL_##name,
    BY_NAME(ENTRY) NUMPY(ENTRY)
#undef ENTRY
        CALL_COUNT
};

static const char *const names[] = {
#define ENTRY(name) #name,
    BY_NAME(ENTRY) NUMPY(ENTRY)
#undef ENTRY
};

static const char *const infallible[] = {
#define ENTRY(name) #name,
    CANNOT_FAIL(ENTRY)
#undef ENTRY
};

/* --- which call fails ------------------------------------------------------------------------------------------------ */

static _Thread_local long seen;   /* calls since this thread was armed */
static _Thread_local long target; /* the one that fails; 0: none */
static _Thread_local bool onwards;
static _Thread_local const char *failed; /* the first that did */

__attribute__((visibility("default"))) void failing_calls_arm(long nth, int all_later_too) {
    seen = 0;
    failed = NULL;
    onwards = all_later_too != 0;
    target = nth;
}

__attribute__((visibility("default"))) const char *failing_calls_disarm(void) {
    target = 0;
    return failed;
}

static bool fails(int call) {
    if (target == 0 || !(++seen == target || (onwards && seen > target))) {
        return false;
    }
    if (failed == NULL) {
        failed = names[call];
    }
    return true;
}

/* --- wrappers -------------------------------------------------------------------------------------------------------- */

/* The arguments are handed on as the words they came in. More than a function takes does no harm, and no function above
 * takes or returns floating-point numbers. */
typedef uintptr_t word;
#define PARAMETERS                                                                                                     \
    word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, word m, word n,    \
        word o, word p, word q, word r
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r
typedef word (*function)(PARAMETERS);

static function originals[CALL_COUNT];

static word no_memory(word result) {
    PyErr_NoMemory();
    return result;
}

static word discard(word object) {
    Py_XDECREF((PyObject *)object);
    return no_memory(0);
}

static word no_overflow(word overflow) {
    *(int *)overflow = 0;
    return no_memory((word)-1);
}

static word set_errno(word result) {
    errno = ENOMEM;
    return result;
}

#define WRAPPER(name, failure)                                                                                         \
    static word wrapped_##name(PARAMETERS) {                                                                           \
        return fails(CALL_##name) ? (failure) : originals[CALL_##name](ARGUMENTS);                                     \
    }
#define WRAPPER_NULL(name)      WRAPPER(name, no_memory(0))
#define WRAPPER_MINUS_ONE(name) WRAPPER(name, no_memory((word) - 1))
#define WRAPPER_DISCARD(name)   WRAPPER(name, discard(originals[CALL_##name](ARGUMENTS)))
#define WRAPPER_OVERFLOW(name)                                                                                         \
    static word wrapped_##name(PARAMETERS) {                                                                           \
        return !PyLong_Check((PyObject *)a) && fails(CALL_##name) ? no_overflow(b)                                     \
                                                                  : originals[CALL_##name](ARGUMENTS);                 \
    }
#define WRAPPER_C_NULL(name)   WRAPPER(name, set_errno(0))
#define WRAPPER_C_MINUS(name)  WRAPPER(name, set_errno((word) - 1))
#define WRAPPER_C_NUMBER(name) WRAPPER(name, ENOMEM)

NULL_RETURNED(WRAPPER_NULL)
MINUS_ONE_RETURNED(WRAPPER_MINUS_ONE)
RESULT_DISCARDED(WRAPPER_DISCARD)
SET_OVERFLOW(WRAPPER_OVERFLOW)
NULL_WITHOUT_EXCEPTION(WRAPPER_C_NULL)
MINUS_ONE_WITHOUT_EXCEPTION(WRAPPER_C_MINUS)
ERROR_NUMBER_RETURNED(WRAPPER_C_NUMBER)
NUMPY_NULL_RETURNED(WRAPPER_NULL)
NUMPY_MINUS_ONE_RETURNED(WRAPPER_MINUS_ONE)
NUMPY_RESULT_DISCARDED(WRAPPER_DISCARD)

/* The base is taken over whatever happens. */
static word fail_to_set_base(word base) {
    Py_DECREF((PyObject *)base);
    return no_memory((word)-1);
}
WRAPPER(SetBaseObject, fail_to_set_base(b))

/* The objects to be changed are given up. */
static word give_up(word left, word right, word result) {
    Py_CLEAR(*(PyObject **)left);
    Py_XDECREF((PyObject *)right);
    return no_memory(result);
}
WRAPPER(PyUnicode_AppendAndDel, give_up(a, b, 0))
WRAPPER(_PyTuple_Resize, give_up(a, 0, (word)-1))

static const function wrappers[] = {
#define ENTRY(name) wrapped_##name,
    BY_NAME(ENTRY) NUMPY(ENTRY)
#undef ENTRY
};

/* --- putting them in ------------------------------------------------------------------------------------------------- */

static char unknown[1024]; /* functions of CPython that are in neither list, separated by spaces */

static bool is_infallible(const char *name) {
    for (size_t index = 0; index < sizeof(infallible) / sizeof(infallible[0]); index++) {
        if (strcmp(infallible[index], name) == 0) {
            return true;
        }
    }
    return false;
}

static void hook_slot(const char *name, function *slot) {
    for (int call = 0; call < CALL_DescrConverter; call++) {
        if (strcmp(names[call], name) == 0) {
            /* Not what the slot holds: that may still be the linker's own, which puts the address in at the first call. */
            originals[call] = (function)dlsym(RTLD_DEFAULT, name);
            size_t page = (size_t)sysconf(_SC_PAGESIZE);
            (void)mprotect((void *)((word)slot / page * page), page,
                           PROT_READ | PROT_WRITE); /* may be read-only by now */
            *slot = wrappers[call];
            return;
        }
    }
    if ((strncmp(name, "Py", 2) == 0 || strncmp(name, "_Py", 3) == 0) && !is_infallible(name)) {
        size_t length = strlen(unknown);
        (void)snprintf(unknown + length, sizeof(unknown) - length, "%s ", name);
    }
}

#if defined __x86_64__
enum { CALLED = R_X86_64_JUMP_SLOT };
#elif defined __aarch64__
enum { CALLED = R_AARCH64_JUMP_SLOT };
#else
#error "name this machine's relocation of called functions"
#endif

static void hook_calls(const struct dl_phdr_info *info, const ElfW(Dyn) * dynamic) {
    const char *strings = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *relocations = NULL;
    size_t size = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_STRTAB: strings = (const char *)dynamic->d_un.d_ptr; break;
        case DT_SYMTAB: symbols = (const ElfW(Sym) *)dynamic->d_un.d_ptr; break;
        case DT_JMPREL: relocations = (const ElfW(Rela) *)dynamic->d_un.d_ptr; break;
        case DT_PLTRELSZ: size = dynamic->d_un.d_val; break;
        default: break;
        }
    }
    for (size_t index = 0; index < size / sizeof(*relocations); index++) {
        const ElfW(Rela) *relocation = &relocations[index];
        if (ELF64_R_TYPE(relocation->r_info) == CALLED) {
            hook_slot(strings + symbols[ELF64_R_SYM(relocation->r_info)].st_name,
                      (function *)(info->dlpi_addr + relocation->r_offset));
        }
    }
}

/* NumPy's table as the extension sees it. The last entry that headers of NumPy 2.0 name is 365. */
static void *numpy_table[366];

/* The extension's pointer to the table is hidden: it is the one word among its variables that has this value. */
static int hook_numpy(const struct dl_phdr_info *info, void **table) {
    void *indices[sizeof(numpy_table) / sizeof(numpy_table[0])];
    for (size_t index = 0; index < sizeof(indices) / sizeof(indices[0]); index++) {
        indices[index] = (void *)index;
        numpy_table[index] = table[index];
    }
    failing_calls_indices = indices;
#define ENTRY(name)                                                                                                    \
    originals[CALL_##name] = (function)table[(size_t)(void *)PyArray_##name];                                          \
    numpy_table[(size_t)(void *)PyArray_##name] = (void *)wrapped_##name;
    NUMPY(ENTRY)
#undef ENTRY
    int found = 0;
    for (int segment = 0; segment < info->dlpi_phnum; segment++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[segment];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_W) != 0) {
            word start = (info->dlpi_addr + header->p_vaddr + sizeof(word) - 1) / sizeof(word) * sizeof(word);
            word end = info->dlpi_addr + header->p_vaddr + header->p_memsz;
            for (; start + sizeof(word) <= end; start += sizeof(word)) {
                if (*(void ***)start == table) {
                    *(void ***)start = numpy_table;
                    ++found;
                }
            }
        }
    }
    return found;
}

typedef struct request {
    const char *path;
    void **table;
    int numpy_tables; /* -1: the library was not found */
} request;

static int hook_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    request *wanted = data;
    if (strcmp(info->dlpi_name, wanted->path) != 0) {
        return 0;
    }
    for (int segment = 0; segment < info->dlpi_phnum; segment++) {
        if (info->dlpi_phdr[segment].p_type == PT_DYNAMIC) {
            hook_calls(info, (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[segment].p_vaddr));
        }
    }
    wanted->numpy_tables = hook_numpy(info, wanted->table);
    return 1;
}

/* For the loaded library at `path`; `table` is NumPy's. NULL, or what is wrong. */
__attribute__((visibility("default"))) const char *failing_calls_hook(const char *path, void *table) {
    request wanted = {.path = path, .table = table, .numpy_tables = -1};
    unknown[0] = '\0';
    (void)dl_iterate_phdr(hook_library, &wanted);
    if (wanted.numpy_tables != 1) {
        return wanted.numpy_tables < 0 ? "the library is not loaded" : "its pointer to NumPy's table is not found";
    }
    return unknown[0] != '\0' ? unknown : NULL;
}
