// Stands for torch's header of this name, which includes every type of TorchScript: lists of tensors are only declared.
#pragma once

#ifdef CUDAL1_ALL_TYPES
#include_next <ATen/core/IListRef.h>
#else
#include <ATen/core/ATen_fwd.h>
#endif
