// Stands for torch's header of this name: what torch's factories need of it, and no graph of gradients.
#pragma once

#ifdef CUDAL1_ALL_TYPES
#include_next <torch/csrc/autograd/variable.h>
#else
#include <ATen/core/Tensor.h>

namespace torch::autograd {

using Variable = at::Tensor;

inline Variable make_variable(at::Tensor tensor, bool requires_grad = false) {
    if (tensor.defined() && requires_grad) tensor.set_requires_grad(true);
    return tensor;
}

}  // namespace torch::autograd
#endif
