// Stands for torch's header of this name: tensors, and no modules, optimizers or data loaders.
#pragma once

#include <torch/types.h>
