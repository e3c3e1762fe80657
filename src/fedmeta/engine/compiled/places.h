/* A round and its layers as the caller describes them, and where the work of a node has its place. */

typedef struct {
  int64_t inputs, outputs, activation;
  double slant; /* of the activation */
  int64_t weight_moves, bias_moves;
  const real *weight, *bias;         /* bias NULL: there is none */
  real *weight_state, *bias_state;   /* of all nodes; NULL: nothing is remembered */
  int64_t weight_place, bias_place;  /* in the sum; negative: it is not learned */
} Layer;

typedef struct {
  const Layer *layer;
  int64_t layers;
  int64_t values; /* labels are values, and the loss is their squared error; else cross-entropy */
  const real *class_weights; /* NULL: all are 1 */
  double step_size;
  int64_t curved;
  int64_t support, query; /* samples of a node, padding included */
  const real *inputs[2], *masks[2];
  const void *labels[2];
  const real *factors; /* of every node: keep, gain, share, extra, weight, loss, moved */
  int64_t nodes, chunk, size; /* size: of a sum */
  real *sums;          /* of every chunk: update, weight, loss, moved */
  const real *weights; /* of `prepare` */
  int64_t *next;       /* the chunk that nobody has begun */
} Round;

enum { KEEP, GAIN, SHARE, EXTRA, WEIGHT, LOSS, MOVED, FACTORS };

/* What a node takes while it is computed. */
typedef struct {
  real *right, *left; /* see above */
  real *descended;    /* d_{l+1} W_{l+1}, before the slope */
  real *gram, *pair;  /* K_l and ~d d^T */
  const real *forward, *backward; /* W^T and W in panels */
  int64_t right_stride, left_stride;
} Place;

typedef struct {
  const Round *round;
  Place *place;
  real *outputs, *turned, *narrow; /* h_L of query and support samples; d arriving; a transpose */
  real *share[2];
  int64_t support, query, gram_stride, output_stride; /* samples but for padding at the end */
  int64_t first_moving, first_learned;
} Work;

INLINE int moves(const Layer *layer) { return layer->weight_moves || layer->bias_moves; }
INLINE int learned(const Layer *layer) { return layer->weight_place >= 0 || layer->bias_place >= 0; }

/* Room is counted with `at` NULL and given out otherwise. */
static real *room(real **at, int64_t *used, int64_t numbers) {
  real *here = *at ? *at + *used : NULL;
  *used += stride_of(numbers) + LANES;
  return here;
}

static int64_t laid_out(const Round *round, Work *work, Place *place, real *at) {
  int64_t used = 0, s = round->support, q = round->query, weights = 0, widest = 0;
  work->round = round;
  work->place = place;
  work->gram_stride = stride_of(s);
  work->first_moving = work->first_learned = -1;
  for (int64_t l = 0; l < round->layers; l++) {
    const Layer *layer = &round->layer[l];
    Place own = {0};
    own.right_stride = stride_of(layer->inputs);
    own.left_stride = stride_of(layer->outputs);
    widest = widest > layer->inputs ? widest : layer->inputs;
    widest = widest > layer->outputs ? widest : layer->outputs;
    own.right = room(&at, &used, (q + 2 * s) * own.right_stride);
    own.left = room(&at, &used, (q + 2 * s) * own.left_stride);
    own.descended = room(&at, &used, s * own.left_stride);
    own.gram = room(&at, &used, q * work->gram_stride);
    own.pair = room(&at, &used, q * work->gram_stride);
    own.forward = round->weights + weights;
    weights += packed_size(layer->inputs, layer->outputs);
    own.backward = round->weights + weights;
    weights += packed_size(layer->outputs, layer->inputs);
    if (place) place[l] = own;
    if (moves(layer) && work->first_moving < 0) work->first_moving = l;
    if (learned(layer) && work->first_learned < 0) work->first_learned = l;
  }
  work->output_stride = stride_of(round->layer[round->layers - 1].outputs);
  work->outputs = room(&at, &used, (q + s) * work->output_stride);
  work->turned = room(&at, &used, (q > s ? q : s) * stride_of(widest));
  work->narrow = room(&at, &used, widest * work->gram_stride);
  work->share[0] = room(&at, &used, s);
  work->share[1] = room(&at, &used, q);
  return used;
}
