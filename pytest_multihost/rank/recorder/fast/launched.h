#pragma once
#include "core.h"

/* Launched: what somebody may still wait for, until Python wants to know or it is gone. A dict of weak
 * references, as in torch_works.py, takes longer than all else that is done for an asynchronous call. */

struct launched {
  PyObject *work; /* borrowed, since its end is seen: see work_dealloc; NULL: free */
  Core *core;     /* borrowed: it takes its own out when it goes */
  PyObject *group;
  long long at;
  uint64_t launched_ns;
};
static struct launched all_launched[SETS * WAYS];
static PyTypeObject *work_type;
static destructor dealloc_of_torch;

static struct launched *launched_set(const void *work) {
  return &all_launched[(address_hash(work) >> 20) % SETS * WAYS];
}

static struct launched *launched_among(struct launched *set, const void *work) {
  for (int way = 0; way < WAYS; way++)
    if (set[way].work == work) return &set[way];
  return NULL;
}

static struct launched *launched_find(const void *work) {
  return launched_among(launched_set(work), work);
}

static void launched_forget(struct launched *self) {
  self->work = NULL;
  Py_CLEAR(self->group);
}

/* End what nobody can wait for any more: its work is gone. As Works._drop. */
static void work_dealloc(PyObject *work) {
  struct launched *found = launched_find(work);
  if (found) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    core_end(found->core, found->at);
    launched_forget(found);
    PyErr_Restore(type, error, traceback);
  }
  dealloc_of_torch(work);
}

/* See the end of each work from now on; there is one such type, and it is seen once. */
static int watch_works(PyTypeObject *type) {
  if (work_type && work_type != type) {
    PyErr_SetString(PyExc_TypeError, "there is another type of works");
    return -1;
  }
  if (!work_type) {
    Py_INCREF(type);
    work_type = type;
    dealloc_of_torch = type->tp_dealloc;
    type->tp_dealloc = work_dealloc;
  }
  return 0;
}

/* Give one to Python, which works.adopt takes over. -1 with an exception. */
static SELDOM int give(Core *self, PyObject *work, long long at, PyObject *group,
                       uint64_t launched_ns) {
  PyObject *done = PyObject_CallMethod(self->works, "adopt", "OLOK", work, at, group,
                                       (unsigned long long)launched_ns);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* Give Python all that is launched. -1 with an exception. */
static SELDOM int hand_over(Core *self) {
  for (int each = 0; each < SETS * WAYS; each++) {
    struct launched *found = &all_launched[each];
    if (!found->work || found->core != self) continue;
    PyObject *work = found->work, *group = found->group;
    Py_INCREF(work);
    Py_INCREF(group);
    int failed = give(self, work, found->at, group, found->launched_ns);
    if (!failed && found->work == work) launched_forget(found);
    Py_DECREF(group);
    Py_DECREF(work);
    if (failed) return -1;
  }
  return 0;
}

static PyObject *core_hand_over(PyObject *self, PyObject *unused) {
  (void)unused;
  if (hand_over((Core *)self)) return NULL;
  Py_RETURN_NONE;
}

/* Keep in mind what is launched: as Works._hold. -1 with an exception. */
static int core_hold(Core *self, PyObject *work, long long at, PyObject *group) {
  uint64_t launched_ns = now_ns();
  struct launched *set = launched_set(work), *found = NULL;
  if (Py_TYPE(work) == work_type && !(found = launched_among(set, work)))
    found = launched_among(set, NULL);
  Py_INCREF(group); /* whose it is may let go of it while Python runs */
  if (!found) { /* there is no room, or its end would not be seen */
    int failed = hand_over(self) || give(self, work, at, group, launched_ns);
    Py_DECREF(group);
    return failed ? -1 : 0;
  }
  Py_XSETREF(found->group, group);
  found->work = work;
  found->core = self;
  found->at = at;
  found->launched_ns = launched_ns;
  return 0;
}
