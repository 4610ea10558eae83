// libcudnn's recurrent layers: weights have cuDNN's layout; temporary sizes are those that the real library returns for a
// zeroed handle, in bfloat16 those of float16.
#include "cudnn.h"
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {
enum { LSTM = 2, GRU = 3 };
enum { HALF = 2, BFLOAT16 = 9 };
struct Layers { int cell, bias, bidirectional, input_mode, type, precision, math, input, hidden, projection, count; Descriptor dropout; unsigned flags; };
struct Sequence { int layout, length, width; std::vector<int> lengths; };
std::mutex lock;
std::unordered_map<Descriptor, Layers> layers;
std::unordered_map<Descriptor, Sequence> sequences;

Layers layers_of(Descriptor d) {
  std::lock_guard<std::mutex> guard(lock);
  return layers[d];
}
// The real library computes sizes from descriptors and reads little of a handle, so zeros suffice for sizes.
Handle zeros() {
  static char *room = (char *)calloc(1, 2 * MIB);
  return room + MIB;
}
int item_bytes(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; }
int gates(const Layers &l) { return l.cell == LSTM ? 4 : l.cell == GRU ? 3 : 1; }
int output_width(const Layers &l) { return l.projection ? l.projection : l.hidden; }
int directions(const Layers &l) { return l.bidirectional ? 2 : 1; }
int input_width(const Layers &l, int layer) { return layer ? output_width(l) * directions(l) : l.input; }

// Elements before a matrix or bias in the weights' space, which holds all matrices, then all biases; their total in `end`.
size_t offset(const Layers &l, int pseudo_layer, int linear, bool bias, size_t *end = nullptr) {
  const int both = 2 * gates(l);
  size_t at = 0, found = 0;
  for (int biases = 0; biases < (l.bias ? 2 : 1); biases++)
    for (int p = 0; p < l.count * directions(l); p++)
      for (int k = 0; k < both + (l.projection && !biases ? 1 : 0); k++) {
        if (p == pseudo_layer && k == linear && bool(biases) == bias) found = at;
        const int columns = k < gates(l) ? input_width(l, p / directions(l)) : k < both ? output_width(l) : l.projection;
        at += biases ? size_t(l.hidden) : size_t(l.hidden) * columns;
      }
  if (end) *end = at;
  return found;
}

int describe(Descriptor d, int algorithm, const Layers &l) {
  return ask_cudnn("cudnnSetRNNDescriptor_v8", d, algorithm, l.cell, l.bias, l.bidirectional, l.input_mode, l.type, l.precision, l.math, l.input, l.hidden,
                   output_width(l), l.count, l.dropout, l.flags);
}
}  // namespace

API int cudnnSetRNNDescriptor_v8(Descriptor d, int algorithm, int cell, int bias, int direction, int input_mode, int type, int precision, int math, int input,
                                 int hidden, int projection, int count, Descriptor dropout, unsigned flags) {
  const Layers l{cell, bias, direction, input_mode, type, precision, math, input, hidden, projection == hidden ? 0 : projection, count, dropout, flags};
  {
    std::lock_guard<std::mutex> guard(lock);
    layers[d] = l;
  }
  return describe(d, algorithm, l);
}
// Restored states are not read: the descriptor is set again without states, for the sizes, which depend on its probability.
API int cudnnSetDropoutDescriptor(Descriptor d, Handle, float probability, void *, size_t, unsigned long long seed) {
  auto set = (int (*)(Descriptor, Handle, float, void *, size_t, unsigned long long))nocuda_cudnn("cudnnSetDropoutDescriptor");
  return set(d, zeros(), probability, nullptr, 0, seed);
}
API int cudnnRestoreDropoutDescriptor(Descriptor d, Handle handle, float probability, void *states, size_t bytes, unsigned long long seed) {
  return cudnnSetDropoutDescriptor(d, handle, probability, states, bytes, seed);
}
API int cudnnSetRNNDataDescriptor(Descriptor d, int type, int layout, int length, int batch, int width, const int *lengths, void *fill) {
  {
    std::lock_guard<std::mutex> guard(lock);
    sequences[d] = {layout, length, width, {lengths, lengths + batch}};
  }
  return ask_cudnn("cudnnSetRNNDataDescriptor", d, type, layout, length, batch, width, lengths, fill);
}
API int cudnnGetRNNWeightSpaceSize(Handle, Descriptor d, size_t *bytes) {
  const Layers l = layers_of(d);
  offset(l, 0, 0, false, bytes);
  *bytes *= item_bytes(l.type);
  return 0;
}
API int cudnnGetRNNWeightParams(Handle, Descriptor d, int pseudo_layer, size_t, const void *space, int linear, Descriptor matrix, void **matrix_at, Descriptor bias,
                                void **bias_at) {
  const Layers l = layers_of(d);
  const int both = 2 * gates(l);
  const bool projects = linear == both;
  const bool has_matrix = linear < both || (projects && l.projection), has_bias = l.bias && linear < both;
  auto address = [&](bool of_bias) { return (char *)space + offset(l, pseudo_layer, linear, of_bias) * item_bytes(l.type); };
  const int rows = projects ? l.projection : l.hidden;
  const int columns = linear < gates(l) ? input_width(l, pseudo_layer / directions(l)) : projects ? l.hidden : output_width(l);
  if (matrix_at) *matrix_at = has_matrix ? address(false) : nullptr;
  if (bias_at) *bias_at = has_bias ? address(true) : nullptr;
  const int dims[3] = {1, rows, columns}, strides[3] = {rows * columns, columns, 1}, bias_dims[3] = {1, l.hidden, 1}, bias_strides[3] = {l.hidden, 1, 1};
  if (matrix && has_matrix) ask_cudnn("cudnnSetTensorNdDescriptor", matrix, l.type, 3, (const int *)dims, (const int *)strides);
  if (bias && has_bias) ask_cudnn("cudnnSetTensorNdDescriptor", bias, l.type, 3, (const int *)bias_dims, (const int *)bias_strides);
  return 0;
}
// The real library writes both sizes, then fails without a device (5003); they are used if it wrote any. A zeroed handle
// gets no persistent algorithm, so the sizes are the standard one's, and no bfloat16, so they are those of float16.
API int cudnnGetRNNTempSpaceSizes(Handle, Descriptor d, int training, Descriptor x, size_t *workspace, size_t *reserve) {
  Layers l = layers_of(d);
  size_t work = 0, kept = 0;
  auto ask = [&](Descriptor data) { ask_cudnn("cudnnGetRNNTempSpaceSizes", zeros(), d, training, data, &work, &kept); };
  ask(x);
  if (!work) {
    describe(d, 0, l);
    ask(x);
  }
  if (!work && l.type == BFLOAT16) {
    Descriptor same = nullptr;
    Sequence s;
    {
      std::lock_guard<std::mutex> guard(lock);
      s = sequences[x];
    }
    l.type = HALF;
    describe(d, 0, l);
    ask_cudnn("cudnnCreateRNNDataDescriptor", &same);
    ask_cudnn("cudnnSetRNNDataDescriptor", same, l.type, s.layout, s.length, int(s.lengths.size()), s.width, (const int *)s.lengths.data(), (void *)nullptr);
    ask(same);
    ask_cudnn("cudnnDestroyRNNDataDescriptor", same);
  }
  if (!work) {
    std::fprintf(stderr, "nocuda: cuDNN returns no temporary sizes for a recurrent layer of type %d\n", l.type);
    return 5003;
  }
  *workspace = work;
  if (reserve) *reserve = training ? kept : 0;
  return 0;
}
