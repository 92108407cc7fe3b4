#include "broadcast_message.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace epl_ops {

namespace tf = tensorflow;

std::string EncodeShape(const tf::Tensor& tensor) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(tensor.dtype()), tensor.dims()};
  for (int i = 0; i < tensor.dims(); ++i) numbers.push_back(tensor.dim_size(i));
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

tf::Status DecodeShape(const std::string& header, tf::DataType* dtype, tf::TensorShape* shape) {
  std::vector<int64_t> numbers(header.size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), header.data(), numbers.size() * sizeof(int64_t));
  if (numbers.size() < 2 || header.size() % sizeof(int64_t) != 0 ||
      numbers[1] != static_cast<int64_t>(numbers.size()) - 2) {
    return tf::errors::Internal("a broadcast header of ", header.size(), " bytes cannot be read");
  }
  *dtype = static_cast<tf::DataType>(numbers[0]);
  for (size_t i = 2; i < numbers.size(); ++i) {
    if (numbers[i] < 0) return tf::errors::Internal("a broadcast header has a negative dimension");
    shape->AddDim(numbers[i]);
  }
  return tf::Status();
}

std::string EncodeStrings(const tf::Tensor& tensor) {
  const auto strings = tensor.flat<tf::tstring>();
  std::string body;
  for (int64_t i = 0; i < strings.size(); ++i) {
    const uint64_t length = strings(i).size();
    body.append(reinterpret_cast<const char*>(&length), sizeof(length));
  }
  for (int64_t i = 0; i < strings.size(); ++i) body.append(strings(i).data(), strings(i).size());
  return body;
}

tf::Status DecodeStrings(const std::string& body, tf::Tensor* tensor) {
  auto strings = tensor->flat<tf::tstring>();
  const size_t count = strings.size();
  const tf::Status damaged =
      tf::errors::Internal("a broadcast of ", count, " strings in ", body.size(), " bytes cannot be read");
  if (body.size() / sizeof(uint64_t) < count) return damaged;
  size_t position = count * sizeof(uint64_t);
  for (size_t i = 0; i < count; ++i) {
    uint64_t length;
    std::memcpy(&length, body.data() + i * sizeof(length), sizeof(length));
    if (length > body.size() - position) return damaged;
    strings(i).assign(body.data() + position, length);
    position += length;
  }
  return position == body.size() ? tf::Status() : damaged;
}

}  // namespace epl_ops
