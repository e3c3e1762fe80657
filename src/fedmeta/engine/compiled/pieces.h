/* What a pass through the layers is made of. */

/* Rows of h of layer l for m samples, from row `first` of its inputs on. */
static void linear(const Work *work, int64_t l, int64_t first, int64_t m, real *to,
                   int64_t stride) {
  const Layer *layer = &work->round->layer[l];
  const Place *own = &work->place[l];
  if (layer->bias)
    for (int64_t i = 0; i < m; i++)
      memcpy(to + i * stride, layer->bias, layer->outputs * sizeof(real));
  multiply(m, layer->outputs, layer->inputs,
           rows_of(own->right + first * own->right_stride, own->right_stride),
           packed(own->forward, layer->inputs), to, stride, !layer->bias);
}

static void activate(const Layer *layer, real *h, int64_t m, int64_t stride) {
  int64_t kind = layer->activation;
  real slant = layer->slant;
  if (kind == STRAIGHT) return;
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < layer->outputs; j += LANES)
      store(h + i * stride + j, activated(kind, slant, load(h + i * stride + j)));
}

/* to = from * f'(u), row by row; with `change` and `before` also + before * change * f''/f' (u) */
static void sloped(const Layer *layer, int64_t m, const real *from, const real *u, real *to,
                   int64_t stride, const real *before, const real *change) {
  int64_t kind = layer->activation;
  real slant = layer->slant;
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < layer->outputs; j += LANES) {
      int64_t at = i * stride + j;
      vec value = load(u + at), found = load(from + at) * slope(kind, slant, value);
      if (change) found += bend(kind, value) * (load(before + at) * load(change + at));
      store(to + at, found);
    }
}

/* K = A B^T for A m x inner and B n x inner */
static void products_of_rows(const Work *work, int64_t m, int64_t n, int64_t inner, const real *a,
                             const real *b, int64_t stride, real *to) {
  transpose(b, n, inner, stride, work->narrow, work->gram_stride);
  multiply(m, n, inner, rows_of(a, stride), plain(work->narrow, work->gram_stride), to,
           work->gram_stride, 1);
}

/* The loss at m outputs: its gradient by them times `share`, and the mean if it is asked for.
   With `moved` the change of that gradient along it. 0: a label is no class. */
static int open_loss(const Round *round, int set, int64_t node, int64_t m, const real *outputs,
                     const real *moved, int64_t stride, const real *share, real scale, real *to,
                     int64_t to_stride, real *mean) {
  int64_t n = round->layer[round->layers - 1].outputs;
  int64_t samples = set ? round->query : round->support;
  const int64_t *classes = (const int64_t *)round->labels[set] + node * samples;
  const real *values = (const real *)round->labels[set] + node * samples * n;
  real total_loss = 0;
  for (int64_t i = 0; i < m; i++) {
    const real *z = outputs + i * stride, *along = moved ? moved + i * stride : NULL;
    real *own = to + i * to_stride, factor = share[i] * scale, loss = 0;
    if (round->values) {
      const real *label = values + i * n;
      for (int64_t j = 0; j < n; j++) {
        real off = z[j] - label[j];
        loss += off * off / (real)n;
        own[j] = factor * 2 / (real)n * (along ? along[j] : off);
      }
    } else {
      int64_t label = classes[i];
      if (label < 0 || label >= n) return 0;
      real most = z[0], total = 0, mixed = 0;
      for (int64_t j = 1; j < n; j++) most = z[j] > most ? z[j] : most;
      for (int64_t j = 0; j < n; j += LANES)
        store(own + j, expm1_of(load(z + j) - most) + 1);
      for (int64_t j = 0; j < n; j++) total += own[j];
      real weight = round->class_weights ? round->class_weights[label] : 1;
      if (mean) loss = weight * ((real)log((double)total) - (z[label] - most));
      factor *= weight;
      if (along) {
        for (int64_t j = 0; j < n; j++) mixed += own[j] * along[j];
        vec centre = all(mixed / total), scaled = all(factor / total);
        for (int64_t j = 0; j < n; j += LANES)
          store(own + j, scaled * load(own + j) * (load(along + j) - centre));
      } else {
        vec scaled = all(factor / total);
        for (int64_t j = 0; j < n; j += LANES) store(own + j, scaled * load(own + j));
        own[label] -= factor;
      }
    }
    for (int64_t j = n; j < padded(n); j++) own[j] = 0;
    total_loss += share[i] * loss;
  }
  if (mean) *mean = total_loss;
  return 1;
}

/* The share of every sample in the mean loss; how many there are before the padding at the end */
static int64_t shares(const real *mask, int64_t samples, real *share) {
  real total = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < samples; i++) {
    total += mask[i];
    if (mask[i] != 0) last = i + 1;
  }
  for (int64_t i = 0; i < samples; i++) share[i] = mask[i] / total;
  return last ? last : samples;
}

static void take_inputs(const Work *work, int set, int64_t node, int64_t m, int64_t first) {
  const Round *round = work->round;
  int64_t width = round->layer[0].inputs, stride = work->place[0].right_stride;
  const real *from = round->inputs[set] + node * (set ? round->query : round->support) * width;
  real *to = work->place[0].right + first * stride;
  for (int64_t i = 0; i < m; i++) memcpy(to + i * stride, from + i * width, width * sizeof(real));
}
