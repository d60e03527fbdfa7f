/* The processor's description of itself. Two processes have the same bytes only if the same code runs in both.
 *
 * Emulators and containers share the boot id of their kernel, and an emulator shows the machine's own /proc/cpuinfo. So the processor
 * itself is asked, or the kernel's description of it for this process. A header for each way of asking has the names of the words
 * (docs/format.md, "Requirements"): `WORD_NAMES`, as many as `NAMED_WORDS`, in the order of `ask_processor`. */
#include "runtime.h"

#include <string.h>

enum { MAX_WORDS = 16 };

#if defined(__x86_64__)
#include "processor_x86_64.h"
#else

#if defined(__linux__)
#include "processor_linux.h"
#else

static const char *const *const WORD_NAMES = NULL;
enum { NAMED_WORDS = 0 };

static size_t ask_processor(unsigned long long *words) {
    (void)words;
    return 0;
}

#endif

static int was_asked(const unsigned long long *words, size_t number) {
    (void)words;
    (void)number;
    return 1;
}

static int ask_word(const char *name, unsigned long long *word) {
    (void)name;
    *word = 0;
    return 1;
}

#endif

/* processor() -> bytes: words of 64 bits each */
PyObject *processor(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    unsigned long long words[MAX_WORDS] = {0};
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(ask_processor(words) * sizeof *words));
}

/* processor_words(content) -> {name: word}: the words that `processor` has returned; other words are requested one by one */
PyObject *processor_words(PyObject *Py_UNUSED(module), PyObject *content) {
    unsigned long long words[MAX_WORDS] = {0};
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(content, &data, &size) < 0) {
        return NULL;
    }
    memcpy(words, data, (size_t)size < sizeof words ? (size_t)size : sizeof words);
    PyObject *found = PyDict_New();
    for (size_t i = 0; found != NULL && i < NAMED_WORDS && i < (size_t)size / sizeof *words; i++) {
        PyObject *word = was_asked(words, i) ? PyLong_FromUnsignedLongLong(words[i]) : NULL;
        if (word == NULL ? PyErr_Occurred() != NULL : PyDict_SetItemString(found, WORD_NAMES[i], word) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(word);
    }
    return found;
}

/* processor_word(name) -> int: another word, 0 if the processor does not have it; ValueError if the name has an unknown form */
PyObject *processor_word(PyObject *Py_UNUSED(module), PyObject *name) {
    unsigned long long word;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL) {
        return NULL;
    }
    if (!ask_word(text, &word)) {
        return PyErr_Format(PyExc_ValueError, "%R is not a word of this processor", name);
    }
    return PyLong_FromUnsignedLongLong(word);
}
