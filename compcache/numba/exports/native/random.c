/* Provides random numbers to exported kernels: the Mersenne Twister (Matsumoto and Nishimura, 1998). Each thread has one state for each
 * of Numba's two modules, `random` and `numpy.random`. If Numba is loaded, the states are Numba's.
 *
 * Compiled code reads random numbers from the state itself (numba/cpython/randomimpl.py). It calls functions for the address of the
 * state, the next 624 words, a seed, and numbers of the Poisson distribution. */
#include "objects.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 624, SHIFT = 397 };

/* The layout that compiled code uses. */
typedef struct {
    int next; /* the index of the next word; WORDS if new words must be generated */
    uint32_t words[WORDS];
    int has_normal;
    double normal; /* the second of a pair of normally distributed numbers */
    int is_initialized;
} State;

enum Stream { STREAM_PYTHON, STREAM_NUMPY, STREAM_INTERNAL, STREAMS };
typedef State *(*StateGetter)(void);

static __thread State states[STREAMS];
static __thread int has_moved; /* this thread's states are Numba's */
static StateGetter numbas[STREAMS];

/* ----------------------------------------------------------------------------------------------------- generator */

static uint32_t twisted(uint32_t upper, uint32_t lower) {
    const uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return (mixed >> 1) ^ (mixed & 1 ? 0x9908b0dfu : 0);
}

/* Generate all words anew. The caller sets `next`. */
void random_shuffle(void *given) {
    uint32_t *words = ((State *)given)->words;
    for (int i = 0; i < WORDS; i++) {
        words[i] = words[(i + SHIFT) % WORDS] ^ twisted(words[i], words[(i + 1) % WORDS]);
    }
}

void random_seed(void *given, uint32_t seed) {
    State *state = given;
    state->words[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++) {
        const uint32_t before = state->words[i - 1];
        state->words[i] = 1812433253u * (before ^ before >> 30) + i;
    }
    state->next = WORDS;
    state->has_normal = 0;
    state->normal = 0.0;
    state->is_initialized = 1;
}

/* `init_by_array` of the authors. */
static void seed_by_words(State *state, const uint32_t *key, uint32_t count) {
    uint32_t *words = state->words;
    random_seed(state, 19650218u);
    uint32_t at = 1;
    const uint32_t rounds = count > WORDS ? count : WORDS;
    for (uint32_t round = 0; round < rounds + WORDS - 1; round++) {
        const uint32_t before = words[at - 1] ^ words[at - 1] >> 30;
        if (round < rounds) {
            words[at] = (words[at] ^ before * 1664525u) + key[round % count] + round % count;
        }
        else {
            words[at] = (words[at] ^ before * 1566083941u) - at;
        }
        if (++at == WORDS) {
            words[0] = words[WORDS - 1];
            at = 1;
        }
    }
    words[0] = 0x80000000u;
}

/* Seed a state with words from the operating system, as Numba does. The caller may not have the GIL. */
static void seed_from_system(State *state) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *os = PyImport_ImportModule("os");
    PyObject *bytes = os != NULL ? PyObject_CallMethod(os, "urandom", "i", (int)sizeof state->words) : NULL;
    const char *data = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    if (data == NULL) {
        Py_FatalError("compcache: os.urandom failed, so a compiled function has no random numbers");
    }
    uint32_t key[WORDS];
    memcpy(key, data, sizeof key);
    seed_by_words(state, key, WORDS);
    Py_XDECREF(os);
    Py_XDECREF(bytes);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(gil);
}

/* ---------------------------------------------------------------------------------------------------------- states */

static void forget_in_child(void) {
    for (int stream = 0; stream < STREAMS; stream++) {
        states[stream].is_initialized = 0; /* the child must not repeat the numbers of its parent */
    }
}

int prepare_random(void) {
    return pthread_atfork(NULL, NULL, forget_in_child);
}

static void *address_in(PyObject *helpers, const char *name) {
    PyObject *number = PyDict_GetItemString(helpers, name);
    return number != NULL ? PyLong_AsVoidPtr(number) : NULL;
}

static void find_numba(void) {
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("numba._helperlib")) == NULL) {
        PyErr_Clear();
        return;
    }
    PyObject *module = PyImport_GetModule(name);
    PyObject *helpers = module != NULL ? PyObject_GetAttrString(module, "c_helpers") : NULL;
    if (helpers != NULL && PyDict_Check(helpers)) {
        void *const python = address_in(helpers, "get_py_random_state"), *const numpy = address_in(helpers, "get_np_random_state");
        void *const internal = address_in(helpers, "get_internal_random_state");
        if (python != NULL && numpy != NULL && internal != NULL) {
            numbas[STREAM_PYTHON] = (StateGetter)python;
            numbas[STREAM_INTERNAL] = (StateGetter)internal;
            numbas[STREAM_NUMPY] = (StateGetter)numpy;
        }
    }
    Py_XDECREF(helpers);
    Py_XDECREF(module);
    PyErr_Clear();
}

/* Return whether no number was drawn from a state that the system has seeded. Any other seed is the first word of its state. */
static int is_untouched(const State *state) {
    return state->next == WORDS && state->words[0] == 0x80000000u && !state->has_normal;
}

/* Switch to Numba's states once Numba is loaded. Kernels call this with the GIL before they use random numbers. A state that kernels have
 * seeded is copied, unless Numba's state is in use. */
void random_begin(void) {
    if (has_moved) {
        return;
    }
    if (numbas[STREAM_NUMPY] == NULL) {
        find_numba();
    }
    if (numbas[STREAM_NUMPY] == NULL) {
        return;
    }
    for (int stream = 0; stream < STREAMS; stream++) {
        State *theirs = numbas[stream]();
        if (states[stream].is_initialized && is_untouched(theirs)) {
            *theirs = states[stream];
        }
    }
    has_moved = 1;
}

static void *state_of(enum Stream stream) {
    if (has_moved || numbas[stream] != NULL) {
        return numbas[stream]();
    }
    State *state = &states[stream];
    if (!state->is_initialized) {
        seed_from_system(state);
    }
    return state;
}

void *random_python(void) {
    return state_of(STREAM_PYTHON);
}

void *random_numpy(void) {
    return state_of(STREAM_NUMPY);
}

void *random_internal(void) {
    return state_of(STREAM_INTERNAL);
}

/* --------------------------------------------------------------------------------------------------------- Poisson */

static uint32_t next_word(State *state) {
    if (state->next == WORDS) {
        random_shuffle(state);
        state->next = 0;
    }
    uint32_t word = state->words[state->next++];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    return word ^ word >> 18;
}

/* Return a number with 53 random bits in [0, 1). */
static double next_double(State *state) {
    const double high = next_word(state) >> 5;
    const double low = next_word(state) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

/* Return the logarithm of the gamma function by Stirling's series (Zhang and Jin, 1996), with the digits of NumPy and Numba. Other digits
 * would accept other numbers. */
static double log_gamma(double x) {
    static const double series[] = {
        8.333333333333333e-02, -2.777777777777778e-03, 7.936507936507937e-04, -5.952380952380952e-04, 8.417508417508418e-04,
        -1.917526917526918e-03, 6.410256410256410e-03, -2.955065359477124e-02, 1.796443723688307e-01, -1.39243221690590e+00,
    };
    if (x == 1.0 || x == 2.0) {
        return 0.0;
    }
    const long steps = x <= 7.0 ? (long)(7 - x) : 0;
    double shifted = x + (double)steps;
    const double inverse = 1.0 / (shifted * shifted);
    double sum = series[9];
    for (int i = 8; i >= 0; i--) {
        sum = sum * inverse + series[i];
    }
    double result = sum / shifted + 0.5 * log(2 * M_PI) + (shifted - 0.5) * log(shifted) - shifted;
    for (long i = 0; i < steps; i++) {
        result -= log(shifted - 1.0);
        shifted -= 1.0;
    }
    return result;
}

/* Hoermann's transformed rejection, PTRS (Insurance: Mathematics and Economics 12, 1993), for a mean of 10 or more. */
int64_t random_poisson(void *given, double mean) {
    State *state = given;
    const double root = sqrt(mean), logarithm = log(mean);
    const double b = 0.931 + 2.53 * root;
    const double a = -0.059 + 0.02483 * b;
    const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    const double v_r = 0.9277 - 3.6224 / (b - 2);
    for (;;) {
        const double u = next_double(state) - 0.5;
        const double v = next_double(state);
        const double distance = 0.5 - fabs(u);
        const int64_t k = (int64_t)floor((2 * a / distance + b) * u + mean + 0.43);
        if (distance >= 0.07 && v <= v_r) {
            return k;
        }
        if (k < 0 || (distance < 0.013 && v > distance)) {
            continue;
        }
        if (log(v) + log(inverse_alpha) - log(a / (distance * distance) + b)
            <= -mean + (double)k * logarithm - log_gamma((double)k + 1)) {
            return k;
        }
    }
}
