#include <nanobind/nanobind.h>
NB_MODULE(_native, m) { m.attr("SCHEMA") = HELIOGRAPH_SCHEMA; }
