// The form in which a tensor of any shape travels from EplBroadcastSend to EplBroadcastReceive.
#ifndef EPL_BROADCAST_MESSAGE_H_
#define EPL_BROADCAST_MESSAGE_H_

#include <string>

#include "tensorflow/core/framework/tensor.h"

namespace epl_ops {

// The header: element type, number of dimensions, dimensions; all of them 64-bit numbers.
std::string EncodeShape(const tensorflow::Tensor& tensor);
// Fails when the header was not made by EncodeShape.
tensorflow::Status DecodeShape(const std::string& header, tensorflow::DataType* dtype, tensorflow::TensorShape* shape);

// The body of a tensor of strings: the length of each as a 64-bit number, then all their bytes.
std::string EncodeStrings(const tensorflow::Tensor& tensor);
// Fails when the body does not fit the tensor's shape.
tensorflow::Status DecodeStrings(const std::string& body, tensorflow::Tensor* tensor);

}  // namespace epl_ops

#endif  // EPL_BROADCAST_MESSAGE_H_
