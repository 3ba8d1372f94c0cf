/* The hot path of the recorder for torch, for the calls that are made a thousand times.
 *
 * What is recorded, and how, is said in Python: torch_calls.py, torch_works.py, recorder.py and
 * watch/slots.py. This does the same, to the byte, for the common call: a method of exactly the bound
 * class, in a group that is known, with nobody listening and no batch being collected. Whatever else
 * comes goes to the function in Python that each wrapper here has beside the original; either notes
 * a call, never both. So nothing here has to be complete, but all of it has to be equal.
 *
 * What both sides need is held once: counters are the same iterators, the state of a thread is Local,
 * which Python uses as well, and what is launched is handed to Python as soon as it asks. Pages are
 * found through the recorder at each call, since they are replaced: in a forked child, and when a rank
 * is armed.
 *
 * One unit for the compiler, in the order in which one part builds on the other: common, threads, core;
 * where (the user's line), details (what is sent), notes (prepared calls), launched (works); core_type,
 * calls (the wrappers).
 *
 * All of it runs under the interpreter's lock, which only the original gives up.
 */
#include "calls.h"

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_fast",
    .m_doc = "The hot path of the recorder for torch.",
    .m_size = -1,
};

static int make_texts(void) {
  struct {
    PyObject **text;
    const char *is;
  } all[] = {
      {&text_counting, "counting"}, {&text_numbers, "_numbers"}, {&text_asyncop, "asyncOp"},
      {&text_rootrank, "rootRank"}, {&text_dtype, "dtype"},
      {&text_shape, "shape"},     {&text_find, "_find"},        {&text_fail, "fail"},
      {&text_data, "data"},       {&text_sequence, "sequence"}, {&text_count_at, "count_at"},
      {&text_pg, "pg"},           {&text_opts, "opts"},           {&text_fail_wait, "_fail_wait"},
  };
  for (size_t each = 0; each < sizeof all / sizeof *all; each++)
    if (!(*all[each].text = PyUnicode_InternFromString(all[each].is))) return -1;
  return 0;
}

PyMODINIT_FUNC PyInit__fast(void) {
  PyTypeObject *types[] = {&LocalState_Type, &Counter_Type, &Local_Type, &Field_Type,
                           &Core_Type,       &Method_Type,  &Wait_Type};
  Field_Type.tp_base = &PyProperty_Type;
  Field_Type.tp_basicsize = PyProperty_Type.tp_basicsize + (Py_ssize_t)sizeof(Field);
  if (make_texts()) return NULL;
  for (size_t each = 0; each < sizeof types / sizeof *types; each++)
    if (PyType_Ready(types[each])) return NULL;
  PyObject *made = PyModule_Create(&module);
  if (!made) return NULL;
  for (size_t each = 1; each < sizeof types / sizeof *types; each++) {
    if (PyModule_AddType(made, types[each])) {
      Py_DECREF(made);
      return NULL;
    }
  }
  return made;
}
