// What the doubles of the CUDA runtime and of NCCL offer to tests beside the interfaces that they stand for. They are
// for tests only: there is no GPU, "GPU memory" is host memory, and everything is slow.
#ifndef EPL_TESTS_FAKE_GPU_H_
#define EPL_TESTS_FAKE_GPU_H_

#include <cstddef>

extern "C" {

// Every call of either double is a line of this process's log, in order: "cudaEventRecord event 3 stream 1".
void fake_gpu_log(const char* line);
size_t fake_gpu_read_log(char* to, size_t capacity);  // returns the length
void fake_gpu_clear_log(void);

// Runs work on a stream, in its order and on its thread, as a kernel would.
void fake_cuda_enqueue(void* stream, void (*work)(void*), void* arg);
// Waits until a stream is through. Only tests may: the runtime's own calls that wait are not part of the double, so
// that code that uses them cannot be loaded.
void fake_cuda_drain(void* stream);
// From now on events say that the GPU has failed with this error.
void fake_cuda_break(int error);
int fake_cuda_number(const void* object);  // what the log calls a stream or event

// The next call of this function, such as "ncclGroupEnd", returns `result` and does nothing else.
void fake_nccl_fail_call(const char* function, int result);
// The next group of operations never ends, and the communicator has this asynchronous error; 0: just never ends.
void fake_nccl_stall(int async_error);

}  // extern "C"

#endif  // EPL_TESTS_FAKE_GPU_H_
