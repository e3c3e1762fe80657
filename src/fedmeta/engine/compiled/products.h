/* Products of small matrices: C += A B, a tile of C in registers at a time.

   A may be read along either axis (its element (i, k) is at i * rows + k * columns). B is read in
   panels of WIDE vectors: panel p begins at p * panel, and its row k is at k * row further on. Rows
   of B and C have room for whole vectors. */

typedef struct {
  const real *at;
  int64_t rows, columns;
} Left;

typedef struct {
  const real *at;
  int64_t row, panel;
} Right;

#define MOST_ROWS 8 /* of a tile that is one vector wide; others have 6 */
#define PANEL (WIDE * LANES)

INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* An odd number of vectors between rows, so that rows do not compete for the same cache lines. */
INLINE int64_t stride_of(int64_t n) { return (padded(n) / LANES | (n > PANEL)) * LANES; }

INLINE Left rows_of(const real *at, int64_t stride) { return (Left){at, stride, 1}; }
INLINE Left columns_of(const real *at, int64_t stride) { return (Left){at, 1, stride}; }
INLINE Right plain(const real *at, int64_t stride) { return (Right){at, stride, PANEL}; }
INLINE Right packed(const real *at, int64_t rows) { return (Right){at, PANEL, rows * PANEL}; }

/* The sums of a tile: `rows` and `width` are constants wherever it is inlined. */
INLINE void tile_sums(int rows, int width, int64_t inner, Left a, const real *b, int64_t row,
                      vec sums[MOST_ROWS][WIDE]) {
  vec own[MOST_ROWS][WIDE];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < width; j++) own[i][j] = (vec){0};
  for (int64_t k = 0; k < inner; k++) {
    vec from[WIDE];
    for (int j = 0; j < width; j++) from[j] = load(b + k * row + j * LANES);
    for (int i = 0; i < rows; i++) {
      vec factor = all(a.at[i * a.rows + k * a.columns]);
      for (int j = 0; j < width; j++) own[i][j] += factor * from[j];
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < width; j++) sums[i][j] = own[i][j];
}

#define ROWS_OF_TILE(width)                                                                        \
  switch (rows) {                                                                                  \
  case 1: tile_sums(1, width, inner, a, b, row, sums); return;                                     \
  case 2: tile_sums(2, width, inner, a, b, row, sums); return;                                     \
  case 3: tile_sums(3, width, inner, a, b, row, sums); return;                                     \
  case 4: tile_sums(4, width, inner, a, b, row, sums); return;                                     \
  case 5: tile_sums(5, width, inner, a, b, row, sums); return;                                     \
  case 6: tile_sums(6, width, inner, a, b, row, sums); return;                                     \
  case 7: tile_sums(7, 1, inner, a, b, row, sums); return;                                         \
  default: tile_sums(8, 1, inner, a, b, row, sums); return;                                        \
  }

static void tile(int64_t rows, int64_t width, int64_t inner, Left a, const real *b, int64_t row,
                 vec sums[MOST_ROWS][WIDE]) {
  switch (width) {
  case 1: ROWS_OF_TILE(1)
  case 2: ROWS_OF_TILE(2)
#if WIDE > 2
  case 3: ROWS_OF_TILE(3)
  default: ROWS_OF_TILE(4)
#else
  default: ROWS_OF_TILE(2)
#endif
  }
}

/* Rows of the tiles that m rows are divided into: all about equally many. */
INLINE int64_t tile_rows(int64_t m, int64_t width) {
  int64_t most = width == 1 ? MOST_ROWS : 6, tiles = (m + most - 1) / most;
  return (m + tiles - 1) / tiles;
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* C += A B, or C = A B where `fresh`; C is m x n, n rounded up to whole vectors */
static void multiply(int64_t m, int64_t n, int64_t inner, Left a, Right b, real *c, int64_t stride,
                     int fresh) {
  vec sums[MOST_ROWS][WIDE];
  for (int64_t left = 0; left < n; left += PANEL) {
    int64_t width = (least(n - left, PANEL) + LANES - 1) / LANES, height = tile_rows(m, width);
    const real *from = b.at + left / PANEL * b.panel;
    for (int64_t top = 0; top < m; top += height) {
      int64_t rows = least(height, m - top);
      Left part = {a.at + top * a.rows, a.rows, a.columns};
      tile(rows, width, inner, part, from, b.row, sums);
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
          real *to = c + (top + i) * stride + left + j * LANES;
          store(to, fresh ? sums[i][j] : load(to) + sums[i][j]);
        }
    }
  }
}

/* A matrix in panels, for `packed`; `rows` and `columns` say where its elements are */
static void pack(const real *at, int64_t m, int64_t n, int64_t rows, int64_t columns, real *to) {
  for (int64_t left = 0; left < n; left += PANEL)
    for (int64_t k = 0; k < m; k++)
      for (int64_t j = left; j < left + PANEL; j++)
        *to++ = j < n ? at[k * rows + j * columns] : 0;
}

INLINE int64_t packed_size(int64_t m, int64_t n) { return (n + PANEL - 1) / PANEL * PANEL * m; }

static void transpose(const real *from, int64_t m, int64_t n, int64_t stride, real *to,
                      int64_t to_stride) {
  for (int64_t j = 0; j < n; j++) {
    for (int64_t i = 0; i < m; i++) to[j * to_stride + i] = from[i * stride + j];
    for (int64_t i = m; i < padded(m); i++) to[j * to_stride + i] = 0;
  }
}
