/* The taps of a window that lie inside an image: from *first to before the result. */
static int inside(int start, int dilation, int taps, int size, int *first)
{
    int end = taps;
    for (*first = 0; *first < end && start + *first * dilation < 0; ++*first) {
    }
    while (end > *first && start + (end - 1) * dilation >= size) {
        end--;
    }
    return end;
}
