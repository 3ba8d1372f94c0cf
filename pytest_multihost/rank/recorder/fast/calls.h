#pragma once
#include "core_type.h"

/* Wrapper: stands for a method of a bound class. Method for ProcessGroup's, Wait for Work's. */

enum kind { PLAIN, ROOTED, TRANSFER, ANYSOURCE }; /* what tells one call from another: nothing; its
                                                     root; a peer and a tag; a tag */
typedef struct {
  PyObject_VAR_HEAD vectorcallfunc vectorcall;
  PyObject *dict, *original, *slow;
  PyTypeObject *bound;
  Core *core;
  /* Method's alone. */
  PyObject *prepare;
  int kind;
  Py_ssize_t sent;
  /* Wait's alone. */
  struct way way;
  struct entry entries[];
} Wrapper;

/* Whether nothing is uncommon about a call; the state of its thread if so. */
static LocalState *is_common(Wrapper *self, PyThreadState *thread, PyObject *const *args,
                             Py_ssize_t count) {
  Core *core = self->core;
  if (count < 1 || Py_TYPE(args[0]) != self->bound || !core_map(core)) return NULL;
  PyObject *listeners = slot(core->recorder, core->on_begin_at);
  if (!listeners || !PyList_CheckExact(listeners) || PyList_GET_SIZE(listeners)) return NULL;
  LocalState *local = local_at(core->local, thread);
  if (!local) PyErr_Clear();
  return local && !local->coalesced ? local : NULL;
}

/* Return what is passed by a name, which Python's compiler has interned. */
static PyObject *argument(PyObject *const *args, Py_ssize_t count, PyObject *kwnames,
                          PyObject *name) {
  Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t each = 0; each < named; each++) {
    PyObject *is = PyTuple_GET_ITEM(kwnames, each);
    if (is == name || PyUnicode_Compare(is, name) == 0) return args[count + each];
  }
  return NULL;
}

/* Find what tells one call of a method from another; 0: Python must. */
static int tell_apart(Wrapper *self, PyObject *const *args, Py_ssize_t count, PyObject *kwnames,
                      PyObject *opts, long long *one, long long *two) {
  *one = -1;
  *two = 0;
  if (self->kind == PLAIN) return 1;
  if (self->kind == ROOTED) {
    PyObject *root = opts ? PyObject_GetAttr(opts, text_rootrank) : NULL;
    int is_found = whole_number(root, one);
    Py_XDECREF(root);
    return is_found;
  }
  if (kwnames && PyTuple_GET_SIZE(kwnames)) return 0;
  if (self->kind == ANYSOURCE) return count == 3 && whole_number(args[2], two);
  return count == 4 && whole_number(args[2], one) && whole_number(args[3], two);
}

/* Ask Python for an entry. NULL, maybe with an exception: there is none. */
static SELDOM struct entry *prepare(Wrapper *self, struct entry *entry, PyObject *pg, long long one,
                                    long long two) {
  PyObject *prepared = PyObject_CallFunction(self->prepare, "OLL", pg, one, two);
  int failed = !prepared || entry_fill(entry, prepared);
  Py_XDECREF(prepared);
  if (failed) return NULL;
  entry->one = one;
  entry->two = two;
  entry->age = self->core->age;
  return entry;
}

static struct entry *entry_of(Wrapper *self, PyObject *pg, long long one, long long two) {
  size_t hash = mix(address_hash(pg) + (size_t)one, (size_t)two);
  struct entry *entry = &self->entries[(hash >> 20) % ENTRIES];
  if (entry->one == one && entry->two == two && entry->age == self->core->age &&
      entry_is_of(entry, pg))
    return entry;
  return prepare(self, entry, pg, one, two);
}

enum { UNSAID = -2 };

/* Whether the caller does not wait at once, if a Field has kept that in mind, which it then forgets. */
static int said_of(LocalState *local, PyObject *opts) {
  int said = local->options && local->options == opts ? local->is_async : UNSAID;
  Py_CLEAR(local->options);
  return said;
}

/* The same, asked of torch: as in Works.hold. -1 with an exception. */
static int is_async(PyObject *opts) {
  if (!opts || opts == Py_None || PyList_CheckExact(opts)) return 1;
  PyObject *value = PyObject_GetAttr(opts, text_asyncop);
  if (!value) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 1;
  }
  int is_true = PyObject_IsTrue(value);
  Py_DECREF(value);
  return is_true;
}

/* Note that a call has returned: as Works.hold, without a batch. -1 with an exception that is the
 * test's. */
static int launched(Wrapper *self, PyObject *pg, long long one, long long two, PyObject *work,
                    long long at, PyObject *opts, int said) {
  Core *core = self->core;
  if (work == Py_None) {
    core_end(core, at);
    return 0;
  }
  int does_not_wait = said == UNSAID ? is_async(opts) : said;
  LocalState *local = local_now(core->local);
  if (does_not_wait == 1) {
    if (local && local->work == (uintptr_t)work) { /* one that is gone without having been waited for */
      local->work = 0;
      core_end(core, local->at);
    }
    core_leave(core, at);
    struct entry *entry = entry_of(self, pg, one, two);
    if (entry) core_hold(core, work, at, entry->group);
  } else if (does_not_wait == 0 && local) {
    if (local->work) core_end(core, local->at);
    local->work = (uintptr_t)work;
    local->at = at;
  }
  return recover();
}

/* Note what has been sent, while those work who were told to. -1: the exception that is set is not the
 * one that was, but the test's. */
static int note_detail(Wrapper *self, PyObject *const *args, long long one, long long two,
                       long long at) {
  Core *core = self->core;
  uint32_t detail = 0;
  PyObject *type = NULL, *error = NULL, *traceback = NULL;
  if (PyErr_Occurred()) PyErr_Fetch(&type, &error, &traceback);
  struct entry *entry = entry_of(self, args[0], one, two);
  if (entry && find_detail(core, args[1 + self->sent], entry->prefix, &entry->last, &detail) >= 0 &&
      core_map(core) && is_place(core, at))
    record_at(core, at)->detail = detail;
  int is_graver = recover();
  if (type && !is_graver) {
    PyErr_Restore(type, error, traceback);
  } else {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
  }
  return is_graver;
}

static PyObject *method_call(PyObject *object, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames) {
  Wrapper *self = (Wrapper *)object;
  Core *core = self->core;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  long long one, two;
  uint32_t detail = 0;
  struct entry *entry;
  PyThreadState *thread = PyThreadState_Get();
  LocalState *local = is_common(self, thread, args, count);
  if (!local) goto slowly;
  PyObject *opts = NULL;
  if (self->kind == PLAIN || self->kind == ROOTED)
    opts = count > 1 ? args[count - 1] : argument(args, count, kwnames, text_opts);
  int said = said_of(local, opts);
  if (self->kind == ROOTED && kwnames && count > 1) goto slowly; /* opts may stand in either */
  if (!tell_apart(self, args, count, kwnames, opts, &one, &two)) goto slowly;
  entry = entry_of(self, args[0], one, two);
  if (!entry) goto slowly;
  PyObject *sent = count - 1 > self->sent ? args[1 + self->sent] : NULL;
  int is_later = sent && entry->goes_on && is_plain(core, sent);
  if (sent && !is_later) {
    int asked = find_detail(core, sent, entry->prefix, &entry->last, &detail);
    entry = asked > 0 ? entry_of(self, args[0], one, two) : entry; /* Python may have dropped it */
    if (asked < 0 || !entry) goto slowly;
  }
  struct where where;
  long long at = core->layout.no_place, sequence = entry->sequence ? next_of(entry->sequence) : 0;
  int walked = sequence < 0 ? -1 : find_where(core, thread, &entry->way, &where);
  if (walked > 0) entry = core_map(core) ? entry_of(self, args[0], one, two) : NULL; /* as above */
  if (walked >= 0 && entry)
    at = core_note(core, thread, entry, &where, sequence, detail);
  else if (recover())
    return NULL;
  PyObject *work = PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
  if (is_later && note_detail(self, args, one, two, at)) Py_CLEAR(work);
  if (!work)
    tell_error(core, NULL, at);
  else if (launched(self, args[0], one, two, work, at, opts, said))
    Py_CLEAR(work);
  return work;
slowly:
  if (recover()) return NULL;
  if (core->local && (local = local_at(core->local, thread))) Py_CLEAR(local->options);
  PyErr_Clear(); /* there was no memory for a thread's state */
  return PyObject_Vectorcall(self->slow, args, (size_t)count, kwnames);
}

/* Take a work that has been waited for out of what is held, here or in Python. */
static void let_go(Core *self, PyObject *work, long long at) {
  struct launched *found = launched_find(work);
  if (found && found->at == at) {
    launched_forget(found);
  } else if (!found && PyDict_GET_SIZE(self->held)) { /* Python has wanted to know meanwhile */
    PyObject *address = PyLong_FromVoidPtr(work);
    if (!address || PyDict_DelItem(self->held, address)) PyErr_Clear();
    Py_XDECREF(address);
  }
}

static PyObject *wait_call(PyObject *object, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames) {
  Wrapper *self = (Wrapper *)object;
  Core *core = self->core;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count < 1 || Py_TYPE(args[0]) != self->bound || !core_map(core)) goto slowly;
  PyThreadState *thread = PyThreadState_Get();
  LocalState *local = local_at(core->local, thread);
  if (!local) {
    PyErr_Clear();
    goto slowly;
  }
  PyObject *work = args[0];
  int is_held = local->work != (uintptr_t)work;
  long long at;
  if (is_held) {
    struct launched *found = launched_find(work);
    if (!found && !PyDict_GET_SIZE(core->held))
      return PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
    if (!found || found->core != core) goto slowly; /* Python knows */
    at = found->at;
    if (core_wait(core, thread, &self->way, at)) return NULL;
  } else {
    local->work = 0;
    at = local->at;
  }
  PyObject *result = PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
  if (!result) {
    struct launched *found = is_held ? launched_find(work) : NULL;
    if (found && found->at == at) launched_forget(found);
    tell_error(core, work, at);
  } else {
    if (is_held) let_go(core, work, at);
    core_end(core, at);
  }
  return result;
slowly:
  if (count > 0 && launched_find(args[0]) && hand_over(core) && recover()) return NULL;
  return PyObject_Vectorcall(self->slow, args, (size_t)count, kwnames);
}

static PyObject *wrapper_get(PyObject *self, PyObject *instance, PyObject *owner) {
  (void)owner;
  if (instance && instance != Py_None) return PyMethod_New(self, instance);
  Py_INCREF(self);
  return self;
}

static int wrapper_traverse(PyObject *object, visitproc visit, void *arg) {
  Wrapper *self = (Wrapper *)object;
  Py_VISIT(self->dict);
  Py_VISIT(self->original);
  Py_VISIT(self->slow);
  Py_VISIT(self->bound);
  Py_VISIT(self->core);
  Py_VISIT(self->prepare);
  for (Py_ssize_t each = 0; each < Py_SIZE(self); each++) {
    Py_VISIT(self->entries[each].pg);
    Py_VISIT(self->entries[each].group);
    Py_VISIT(self->entries[each].sequence);
    Py_VISIT(self->entries[each].counts);
    Py_VISIT(self->entries[each].prefix);
  }
  return 0;
}

static int wrapper_clear(PyObject *object) {
  Wrapper *self = (Wrapper *)object;
  for (Py_ssize_t each = 0; each < Py_SIZE(self); each++) entry_clear(&self->entries[each]);
  Py_CLEAR(self->dict);
  return 0; /* the rest is needed to be called, and its cycles go through __dict__ or the class */
}

static void wrapper_dealloc(PyObject *object) {
  Wrapper *self = (Wrapper *)object;
  PyObject_GC_UnTrack(object);
  wrapper_clear(object);
  Py_CLEAR(self->original);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->bound);
  Py_CLEAR(self->core);
  Py_CLEAR(self->prepare);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *wrapper_make(PyTypeObject *type, Py_ssize_t entries, PyObject *core,
                              PyObject *original, PyObject *slow, PyObject *bound) {
  Wrapper *self = (Wrapper *)type->tp_alloc(type, entries);
  if (!self) return NULL;
  if (PyInstanceMethod_Check(original)) original = PyInstanceMethod_GET_FUNCTION(original);
  PyObject *kept[] = {core, original, slow, bound};
  for (size_t each = 0; each < sizeof kept / sizeof *kept; each++) Py_INCREF(kept[each]);
  self->core = (Core *)core;
  self->original = original;
  self->slow = slow;
  self->bound = (PyTypeObject *)bound;
  return (PyObject *)self;
}

static PyObject *method_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"core", "original", "slow", "bound", "prepare", "kind", "sent", NULL};
  PyObject *core, *original, *slow, *bound, *prepare;
  int kind;
  Py_ssize_t sent;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$O!OOO!Oin", names, &Core_Type, &core,
                                   &original, &slow, &PyType_Type, &bound, &prepare, &kind, &sent))
    return NULL;
  Wrapper *self = (Wrapper *)wrapper_make(type, ENTRIES, core, original, slow, bound);
  if (!self) return NULL;
  Py_INCREF(prepare);
  self->prepare = prepare;
  self->kind = kind;
  self->sent = sent;
  self->vectorcall = method_call;
  return (PyObject *)self;
}

static PyObject *wait_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"core", "original", "slow", "bound", NULL};
  PyObject *core, *original, *slow, *bound;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$O!OOO!", names, &Core_Type, &core, &original,
                                   &slow, &PyType_Type, &bound))
    return NULL;
  Wrapper *self = (Wrapper *)wrapper_make(type, 0, core, original, slow, bound);
  if (self) self->vectorcall = wait_call;
  return (PyObject *)self;
}

/* As functions are copied: as themselves. */
static PyObject *wrapper_copy(PyObject *self, PyObject *memo) {
  (void)memo;
  Py_INCREF(self);
  return self;
}

static PyMethodDef wrapper_methods[] = {
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},
    {"__deepcopy__", wrapper_copy, METH_O, NULL},
    {0},
};

static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

#define WRAPPER(name, of, make)                                                                  \
  {                                                                                              \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = name, .tp_doc = of,                                 \
    .tp_basicsize = sizeof(Wrapper), .tp_itemsize = sizeof(struct entry),                        \
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |           \
                Py_TPFLAGS_METHOD_DESCRIPTOR,                                                    \
    .tp_new = make, .tp_traverse = wrapper_traverse, .tp_clear = wrapper_clear,                  \
    .tp_dealloc = wrapper_dealloc, .tp_descr_get = wrapper_get, .tp_call = PyVectorcall_Call,    \
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),                                       \
    .tp_dictoffset = offsetof(Wrapper, dict), .tp_getset = wrapper_getset,                       \
    .tp_methods = wrapper_methods,                                                               \
  }

static PyTypeObject Method_Type =
    WRAPPER("pytest_multihost._fast.Method", "Stands for a method of ProcessGroup.", method_new);
static PyTypeObject Wait_Type =
    WRAPPER("pytest_multihost._fast.Wait", "Stands for a method of Work.", wait_new);
