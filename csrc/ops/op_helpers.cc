#include "op_helpers.h"

#include <cstdio>
#include <cstring>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace epl_ops {

bool ToCommType(tf::DataType dtype, epl_dtype* result) {
  switch (dtype) {
    case tf::DT_HALF:
      *result = EPL_FLOAT16;
      return true;
    case tf::DT_BFLOAT16:
      *result = EPL_BFLOAT16;
      return true;
    case tf::DT_FLOAT:
      *result = EPL_FLOAT32;
      return true;
    case tf::DT_DOUBLE:
      *result = EPL_FLOAT64;
      return true;
    case tf::DT_INT32:
      *result = EPL_INT32;
      return true;
    case tf::DT_INT64:
      *result = EPL_INT64;
      return true;
    case tf::DT_UINT8:
      *result = EPL_UINT8;
      return true;
    case tf::DT_BOOL:
      *result = EPL_BOOL;
      return true;
    default:
      return false;
  }
}

tf::Status ToStatus(int code, const std::string& message, const std::string& name) {
  // Most messages name the collective by themselves.
  // The prefix tells such an error from one of the model's own (epl/session/job.py looks for it).
  const std::string text =
      "epl communication: " + (message.find(name) == std::string::npos ? "'" + name + "': " + message : message);
  switch (code) {
    case EPL_OK:
      return tf::Status();
    case EPL_TIMEOUT:
      return tf::errors::DeadlineExceeded(text);
    case EPL_ABORTED:
      return tf::errors::Aborted(text);
    case EPL_PEER_LOST:
      // Not Unavailable: TensorFlow 2.15 turns that into Internal, because it takes it for an error of its own network.
      return tf::errors::Aborted(text);
    case EPL_MISMATCH:
      return tf::errors::FailedPrecondition(text);
    case EPL_INVALID:
      return tf::errors::InvalidArgument(text);
    default:
      return tf::errors::Internal(text);
  }
}

tf::Status NoCommunicator(int slot, const std::string& name) {
  return tf::errors::FailedPrecondition(
      "'", name, "': this worker has no communicator number ", slot,
      ". The graph talks to other workers, so it runs only in a session of epl, which connects them first "
      "(epl.communicators.pool.Pool.connect).");
}

Call::Call(tf::OpKernelContext* context, std::shared_ptr<PoolSlot> slot, std::string name,
           std::function<void(const tf::Status&)> finish)
    : context_(context), slot_(std::move(slot)), name_(std::move(name)), finish_(std::move(finish)) {
  std::memset(&request, 0, sizeof(request));
  request.tag = -1;
  request.scale = 1.0;
}

void Call::Start() {
  request.segments = segments.data();
  request.num_segments = segments.size();
  if (!header.empty()) {
    request.header = reinterpret_cast<const uint8_t*>(header.data());
    request.header_length = header.size();
  }
  request.allocate = allocate ? &Call::Allocate : nullptr;
  request.refusal = allocate ? &Call::Refusal : nullptr;
  request.done = &Call::Done;
  request.arg = this;
  request.name = name_.c_str();
  // On a GPU the communicator begins when the stream has come here, and the results are there when it is done.
  request.stream = StreamOf(context_);
  tf::CancellationManager* manager = context_->cancellation_manager();
  if (manager != nullptr) {
    token_ = manager->get_cancellation_token();
    std::shared_ptr<PoolSlot> slot = slot_;  // the callback may run after this object is gone
    const std::string reason = "the step was cancelled while '" + name_ + "' was under way";
    auto cancel = [slot, reason]() { epl_comm_abort(slot->get(), reason.c_str()); };
    // A step that is cancelled already: submitted all the same, the aborted communicator answers at once.
    if (!manager->RegisterCallback(token_, cancel)) cancel();
  }
  // `this` may be gone when submit returns, the slot must not be.
  std::shared_ptr<PoolSlot> slot = slot_;
  epl_comm_submit(slot->get(), &request);
}

void Call::Done(void* arg, int code, const char* message) {
  std::unique_ptr<Call> self(static_cast<Call*>(arg));
  tf::CancellationManager* manager = self->context_->cancellation_manager();
  // Try: waiting here for a cancellation that is under way could wait for this very thread.
  if (manager != nullptr) manager->TryDeregisterCallback(self->token_);
  tf::Status status = self->failure;
  if (status.ok()) status = ToStatus(code, message == nullptr ? "" : message, self->name_);
  self->finish_(status);
}

void* Call::Allocate(void* arg, const size_t* counts, int size, const uint8_t* extra, size_t extra_length) {
  Call* self = static_cast<Call*>(arg);
  return self->allocate(counts, size, extra, extra_length);
}

// The peers hear of it too, whichever of them fails first: without the reason they could only say that it happened.
int Call::Refusal(void* arg, char* message, size_t length) {
  const tf::Status& failure = static_cast<Call*>(arg)->failure;
  const std::string text = failure.ToString();  // "code: message" on both lines; no other way to it is on both
  const size_t code = text.find(": ");
  std::snprintf(message, length, "%s", text.c_str() + (code == std::string::npos ? 0 : code + 2));
  return failure.code() == tf::errors::FailedPrecondition("").code() ? EPL_MISMATCH : EPL_INTERNAL;
}

void CopyInputs(tf::OpKernelContext* context, int count, char* to) {
  for (int i = 0; i < count; ++i) {
    const size_t bytes = context->input(i).tensor_data().size();
    if (bytes > 0) std::memcpy(to, Bytes(context->input(i)), bytes);
    to += bytes;
  }
}

tf::Status FillWithZeros(tf::OpKernelContext* context, epl_comm* comm, const tf::Tensor& tensor) {
  const size_t bytes = tensor.tensor_data().size();
  void* stream = StreamOf(context);
  if (bytes == 0) return tf::Status();
  if (stream == nullptr) {
    std::memset(Bytes(tensor), 0, bytes);
    return tf::Status();
  }
  char error[1024] = "";
  const int code = epl_comm_zero(comm, Bytes(tensor), bytes, stream, error, sizeof(error));
  return ToStatus(code, error, "zeros");
}

void RunOnDevice(tf::OpKernelContext* context, std::function<void()> work) {
  context->device()->tensorflow_cpu_worker_threads()->workers->Schedule(std::move(work));
}

}  // namespace epl_ops
