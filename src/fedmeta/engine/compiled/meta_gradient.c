/* Meta-gradients of a chain of linear layers, node after node, and what a round makes of them.

   The formulas are those of engine/chain/chain.py, which is the same in PyTorch. Here everything of
   a node stays in the cache of a core, and a meta-gradient is never written down: a tile of it goes
   from registers into the node's dual and the sum over nodes.

   a, d are the inputs of a layer and the gradient by its outputs on support samples, ~a and ~d on
   query samples; a' and d' are how a and d change along the gradient by the adapted parameters.
   Gradients on support samples are kept times -alpha. A layer's rows are, one below the other,

       right   ~a, a, a'        left   ~d, -alpha d', -alpha d        so that G = left^T right. */

#include "vectors.h"

#include "products.h"

#include "places.h"

#include "pieces.h"

/* All left and right rows of a node; 0: a label is no class */
static int derived(Work *work, int64_t node, real *meta_loss) {
  const Round *round = work->round;
  const Layer *layers = round->layer;
  int64_t last = round->layers - 1, moving = work->first_moving, low = work->first_learned;
  real alpha = (real)round->step_size;
  int64_t s = work->support = shares(round->masks[0] + node * round->support, round->support,
                                     work->share[0]);
  int64_t q = work->query = shares(round->masks[1] + node * round->query, round->query,
                                   work->share[1]);
  take_inputs(work, 1, node, q, 0);
  take_inputs(work, 0, node, s, q);

  /* Forward: query samples with support samples until something has moved, then these alone. */
  for (int64_t l = 0; l <= last; l++) {
    int64_t first = l <= moving ? 0 : q;
    real *h = l < last ? work->place[l + 1].right : work->outputs;
    int64_t stride = l < last ? work->place[l + 1].right_stride : work->output_stride;
    linear(work, l, first, q + s - first, h + first * stride, stride);
    first = l < moving ? 0 : q;
    activate(&layers[l], h + first * stride, q + s - first, stride);
  }
  Place *top = &work->place[last];
  if (!open_loss(round, 0, node, s, work->outputs + q * work->output_stride, NULL,
                 work->output_stride, work->share[0], -alpha, top->left + (q + s) * top->left_stride,
                 top->left_stride, NULL))
    return 0;
  for (int64_t l = last; l > moving; l--) {
    Place *own = &work->place[l], *below = own - 1;
    multiply(s, layers[l].inputs, layers[l].outputs,
             rows_of(own->left + (q + s) * own->left_stride, own->left_stride),
             packed(own->backward, layers[l].outputs), below->descended, below->left_stride, 1);
    sloped(&layers[l - 1], s, below->descended, own->right + q * own->right_stride,
           below->left + (q + s) * below->left_stride, below->left_stride, NULL, NULL);
  }

  /* Query samples through what has moved: h + K (-alpha d) */
  for (int64_t l = moving; l <= last; l++) {
    Place *own = &work->place[l];
    real *h = l < last ? own[1].right : work->outputs;
    int64_t stride = l < last ? own[1].right_stride : work->output_stride;
    if (l > moving) linear(work, l, 0, q, h, stride);
    if (moves(&layers[l])) {
      if (layers[l].weight_moves)
        products_of_rows(work, q, s, layers[l].inputs, own->right,
                         own->right + q * own->right_stride, own->right_stride, own->gram);
      else
        memset(own->gram, 0, q * work->gram_stride * sizeof(real));
      if (layers[l].bias_moves)
        for (int64_t i = 0; i < q; i++)
          for (int64_t j = 0; j < s; j++) own->gram[i * work->gram_stride + j] += 1;
      multiply(q, layers[l].outputs, s, rows_of(own->gram, work->gram_stride),
               plain(own->left + (q + s) * own->left_stride, own->left_stride), h, stride, 0);
    }
    activate(&layers[l], h, q, stride);
  }
  if (!open_loss(round, 1, node, q, work->outputs, NULL, work->output_stride, work->share[1], 1,
                 top->left, top->left_stride, meta_loss))
    return 0;
  for (int64_t l = last; l > low; l--) {
    Place *own = &work->place[l], *below = own - 1;
    multiply(q, layers[l].inputs, layers[l].outputs, rows_of(own->left, own->left_stride),
             packed(own->backward, layers[l].outputs), work->turned, below->left_stride, 1);
    if (layers[l].weight_moves) {
      products_of_rows(work, q, s, layers[l].outputs, own->left,
                       own->left + (q + s) * own->left_stride, own->left_stride, own->pair);
      multiply(q, layers[l].inputs, s, rows_of(own->pair, work->gram_stride),
               plain(own->right + q * own->right_stride, own->right_stride), work->turned,
               below->left_stride, 0);
    }
    sloped(&layers[l - 1], q, work->turned, own->right, below->left, below->left_stride, NULL,
           NULL);
  }
  if (!round->curved) return 1;

  /* Along the gradient: a', then d' */
  for (int64_t l = moving; l <= last; l++) {
    Place *own = &work->place[l];
    real *rise = l < last ? own[1].right + (q + s) * own[1].right_stride
                          : work->outputs + q * work->output_stride;
    real *kept = rise; /* the outputs of support samples are needed once more */
    int64_t stride = l < last ? own[1].right_stride : work->output_stride;
    if (l == last) rise = work->turned;
    if (l > moving)
      multiply(s, layers[l].outputs, layers[l].inputs,
               rows_of(own->right + (q + s) * own->right_stride, own->right_stride),
               packed(own->forward, layers[l].inputs), rise, stride, 1);
    if (moves(&layers[l]))
      multiply(s, layers[l].outputs, q, columns_of(own->gram, work->gram_stride),
               plain(own->left, own->left_stride), rise, stride, l == moving);
    if (l < last)
      sloped(&layers[l], s, rise, own[1].right + q * stride, rise, stride, NULL, NULL);
    else if (!open_loss(round, 0, node, s, kept, rise, stride, work->share[0], -alpha,
                        top->left + q * top->left_stride, top->left_stride, NULL))
      return 0;
  }
  for (int64_t l = last; l > low; l--) {
    Place *own = &work->place[l], *below = own - 1;
    multiply(s, layers[l].inputs, layers[l].outputs,
             rows_of(own->left + q * own->left_stride, own->left_stride),
             packed(own->backward, layers[l].outputs), work->turned, below->left_stride, 1);
    if (layers[l].weight_moves)
      multiply(s, layers[l].inputs, q, columns_of(own->pair, work->gram_stride),
               plain(own->right, own->right_stride), work->turned, below->left_stride, 0);
    int bends = l - 1 >= moving;
    sloped(&layers[l - 1], s, work->turned, own->right + q * own->right_stride,
           below->left + q * below->left_stride, below->left_stride,
           bends ? below->descended : NULL,
           bends ? own->right + (q + s) * own->right_stride : NULL);
  }
  return 1;
}

/* z = keep y + gain G;  the sum gains share z + extra (z - y), and y becomes z */
INLINE vec answered(const real *factor, vec g, real *state, real *sum, vec moved) {
  vec before = state ? load(state) : (vec){0};
  vec after = state ? factor[KEEP] * before + factor[GAIN] * g : factor[GAIN] * g;
  vec away = after - before;
  store(sum, load(sum) + (factor[SHARE] * after + factor[EXTRA] * away));
  if (state) store(state, after);
  return moved + away * away;
}

/* The same for n numbers, the last of which do not fill a vector */
INLINE vec answered_row(const real *factor, const vec *g, int64_t n, real *state, real *sum,
                        vec moved) {
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES)
    moved = answered(factor, g[j / LANES], state ? state + j : NULL, sum + j, moved);
  if (j < n) {
    real some[2][LANES];
    memset(some, 0, sizeof some);
    if (state) memcpy(some[0], state + j, (n - j) * sizeof(real));
    memcpy(some[1], sum + j, (n - j) * sizeof(real));
    vec rest = {0};
    for (int64_t i = j; i < n; i++) rest[i - j] = g[j / LANES][i - j];
    moved = answered(factor, rest, state ? some[0] : NULL, some[1], moved);
    if (state) memcpy(state + j, some[0], (n - j) * sizeof(real));
    memcpy(sum + j, some[1], (n - j) * sizeof(real));
  }
  return moved;
}

/* G of a layer, tile by tile into the node's state and the sum; what moved, squared */
static vec answered_layer(const Work *work, int64_t l, int64_t node, real *sum, vec moved) {
  const Round *round = work->round;
  const Layer *layer = &round->layer[l];
  const Place *own = &work->place[l];
  const real *factor = round->factors + node * FACTORS;
  int64_t m = layer->outputs, n = layer->inputs, s = work->support, q = work->query;
  int64_t inner = q + (round->curved ? s : 0);
  vec sums[MOST_ROWS][WIDE];
  if (layer->bias_place >= 0) {
    real *state = layer->bias_state ? layer->bias_state + node * m : NULL;
    for (int64_t j = 0; j < m; j += LANES) {
      sums[0][0] = (vec){0};
      for (int64_t i = 0; i < inner; i++) sums[0][0] += load(own->left + i * own->left_stride + j);
      moved = answered_row(factor, sums[0], least(m - j, LANES), state ? state + j : NULL,
                           sum + layer->bias_place + j, moved);
    }
  }
  if (layer->weight_place < 0) return moved;
  if (round->curved && l > work->first_moving) inner += s;
  real *state = layer->weight_state ? layer->weight_state + node * m * n : NULL;
  for (int64_t left = 0; left < n; left += PANEL) {
    int64_t columns = least(n - left, PANEL), width = (columns + LANES - 1) / LANES;
    int64_t height = tile_rows(m, width);
    for (int64_t top = 0; top < m; top += height) {
      int64_t rows = least(height, m - top);
      tile(rows, width, inner, columns_of(own->left + top, own->left_stride), own->right + left,
           own->right_stride, sums);
      for (int64_t i = 0; i < rows; i++) {
        int64_t at = (top + i) * n + left;
        moved = answered_row(factor, sums[i], columns, state ? state + at : NULL,
                             sum + layer->weight_place + at, moved);
      }
    }
  }
  return moved;
}

static int computed(Work *work, int64_t node, real *sum) {
  const Round *round = work->round;
  const real *factor = round->factors + node * FACTORS;
  real loss = 0, squared = 0;
  vec moved = {0};
  if (!derived(work, node, &loss)) return 0;
  for (int64_t l = work->first_learned; l < round->layers; l++)
    moved = answered_layer(work, l, node, sum, moved);
  for (int64_t i = 0; i < LANES; i++) squared += moved[i];
  sum[round->size - 3] += factor[WEIGHT];
  sum[round->size - 2] += factor[LOSS] * loss;
  sum[round->size - 1] += factor[MOVED] * squared;
  return 1;
}

/* Numbers that `weights` must have room for. */
int64_t weights_size(const Round *round) {
  int64_t size = 0;
  for (int64_t l = 0; l < round->layers; l++) {
    const Layer *layer = &round->layer[l];
    size += packed_size(layer->inputs, layer->outputs) + packed_size(layer->outputs, layer->inputs);
  }
  return size;
}

/* The weights of all layers in panels, for `compute`. */
void prepare(const Round *round, real *weights) {
  for (int64_t l = 0; l < round->layers; l++) {
    const Layer *layer = &round->layer[l];
    int64_t n = layer->inputs, m = layer->outputs;
    pack(layer->weight, n, m, 1, n, weights);
    weights += packed_size(n, m);
    pack(layer->weight, m, n, n, 1, weights);
    weights += packed_size(m, n);
  }
}

/* Numbers that the work of a thread takes, zero when it is first used. */
int64_t work_size(const Round *round) {
  Work work = {0};
  return laid_out(round, &work, NULL, NULL);
}

/* Chunks that nobody has begun, until there are none: 0. A label that is no class: 1. No memory: 2.
   Several threads may call it for the same round, each with work of its own. */
int64_t compute(const Round *round, real *at) {
  int64_t chunks = (round->nodes + round->chunk - 1) / round->chunk, mine, failed = 0;
  Place *place = calloc(round->layers, sizeof(Place));
  Work work = {0};
  if (!place) return 2;
  laid_out(round, &work, place, at);
  while (!failed && (mine = __atomic_fetch_add(round->next, 1, __ATOMIC_RELAXED)) < chunks) {
    real *sum = round->sums + mine * round->size;
    int64_t end = least((mine + 1) * round->chunk, round->nodes);
    memset(sum, 0, round->size * sizeof(real));
    for (int64_t node = mine * round->chunk; node < end && !failed; node++)
      failed = !computed(&work, node, sum);
  }
  free(place);
  return failed;
}

/* The sums of all chunks, added up in their order, in place of the first. */
void add_up(const Round *round) {
  int64_t chunks = (round->nodes + round->chunk - 1) / round->chunk;
  for (int64_t c = 1; c < chunks; c++)
    for (int64_t j = 0; j < round->size; j++) round->sums[j] += round->sums[c * round->size + j];
}
