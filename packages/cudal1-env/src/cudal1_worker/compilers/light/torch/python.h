// Stands for torch's header of this name, without the bindings of modules and, unless a text names them, without
// Python's objects of tensors.
#pragma once

#ifdef CUDAL1_PYTHON_BINDINGS
#include <torch/types.h>

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>
#ifdef CUDAL1_ALL_TYPES
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>
#include <torch/csrc/utils/python_tuples.h>
#endif
#endif
