// Stands for torch's header of this name, without the device of a list of tensors.
#pragma once

#ifdef CUDAL1_ALL_TYPES
#include_next <ATen/DeviceGuard.h>
#else
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace at {

inline std::optional<Device> device_of(const Tensor& tensor) {
    std::optional<Device> found;
    if (tensor.defined()) found = tensor.device();
    return found;
}

inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
    return tensor ? device_of(*tensor) : std::optional<Device>();
}

}  // namespace at
#endif
