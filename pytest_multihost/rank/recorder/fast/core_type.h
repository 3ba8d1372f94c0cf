/* Core as a type of Python: made, looked through by the collector, let go. */
#pragma once
#include "notes.h"
#include "launched.h"

static int core_traverse(PyObject *object, visitproc visit, void *arg) {
  Core *self = (Core *)object;
  Py_VISIT(self->recorder);
  Py_VISIT(self->works);
  Py_VISIT(self->held);
  Py_VISIT(self->details);
  Py_VISIT(self->local);
  Py_VISIT(self->page_type);
  Py_VISIT(self->tensor_type);
  Py_VISIT(self->page);
  Py_VISIT(self->texts);
  Py_VISIT(self->words);
  return 0;
}

static int core_clear(PyObject *object) {
  Core *self = (Core *)object;
  for (int each = 0; each < SETS * WAYS; each++)
    if (all_launched[each].core == self) launched_forget(&all_launched[each]);
  core_forget(self);
  core_unmap(self);
  Py_CLEAR(self->recorder);
  Py_CLEAR(self->works);
  Py_CLEAR(self->held);
  Py_CLEAR(self->details);
  Py_CLEAR(self->local);
  Py_CLEAR(self->page_type);
  Py_CLEAR(self->tensor_type);
  return 0;
}

static void core_dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  core_clear(object);
  Py_TYPE(object)->tp_free(object);
}

static int core_is_sound(Core *self, const char *format) {
  struct layout *is = &self->layout;
  self->page_at = slot_offset(Py_TYPE(self->recorder), "page");
  self->on_begin_at = slot_offset(Py_TYPE(self->recorder), "on_begin");
  self->words_at = slot_offset(self->page_type, "_words");
  self->numbers_at = slot_offset(self->page_type, "_numbers");
  self->texts_at = slot_offset(self->page_type, "_texts");
  if (PyErr_Occurred()) return 0;
  is->first = is->no_place - is->records * WORDS; /* the records lie right before that one */
  int fits = !strcmp(format, RECORD_FORMAT) && is->records > 0 && is->first > 0;
  if (!fits) PyErr_SetString(PyExc_ValueError, "the slot page has another layout");
  return fits;
}

/* Take torch.Tensor's table of functions, if this version of torch has one that is known here. */
static void core_know_tensors(Core *self, PyObject *type) {
  PyObject *offered = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  struct tensor_functions *functions =
      offered ? PyCapsule_GetPointer(offered, "dlpack_exchange_api") : NULL;
  if (functions && functions->major == 1 && functions->read_tensor && PyType_Check(type)) {
    self->read_tensor = functions->read_tensor;
    Py_INCREF(type);
    self->tensor_type = (PyTypeObject *)type;
  }
  Py_XDECREF(offered); /* the type has it */
  PyErr_Clear();
}

static PyObject *core_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"recorder", "works", "held",    "details",  "local",  "page",
                          "format",   "records", "no_place", "tensor", "work", NULL};
  PyObject *recorder, *works, *held, *details, *local, *page, *tensor, *work;
  const char *format;
  struct layout is = {0};
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$OOO!OO!O!sLLOO!", names, &recorder, &works,
                                   &PyDict_Type, &held, &details, &Local_Type, &local, &PyType_Type,
                                   &page, &format, &is.records, &is.no_place, &tensor, &PyType_Type,
                                   &work))
    return NULL;
  Core *self = (Core *)type->tp_alloc(type, 0); /* all zeros */
  if (!self) return NULL;
  PyObject *kept[] = {recorder, works, held, details, local, page};
  for (size_t each = 0; each < sizeof kept / sizeof *kept; each++) Py_INCREF(kept[each]);
  self->recorder = recorder;
  self->works = works;
  self->held = held;
  self->details = details;
  self->local = (Local *)local;
  self->page_type = (PyTypeObject *)page;
  self->layout = is;
  core_know_tensors(self, tensor);
  if (core_is_sound(self, format) && !watch_works((PyTypeObject *)work)) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyMethodDef core_methods[] = {
    {"hand_over", core_hand_over, METH_NOARGS, "Give what is launched to Works.adopt."},
    {0},
};

static PyTypeObject Core_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.Core",
    .tp_doc = "What the wrappers of one recorder share.",
    .tp_basicsize = sizeof(Core),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = core_new,
    .tp_methods = core_methods,
    .tp_traverse = core_traverse,
    .tp_clear = core_clear,
    .tp_dealloc = core_dealloc,
};
