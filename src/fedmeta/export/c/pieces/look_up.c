/* A function of every number by itself, as a table of its 256 values, in place. */
static void look_up(int count, const int8_t *table, int8_t *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = table[x[i] + 128];
    }
}
