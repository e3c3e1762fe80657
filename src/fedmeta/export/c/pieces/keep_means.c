static int class_count(int c)
{
    int count = 0;
    for (int i = 0; i < samples; i++) {
        count += labels[i] == c;
    }
    return count;
}

static double class_mean(int c, int k)
{
    double sum = 0;
    for (int i = 0; i < samples; i++) {
        sum += labels[i] == c ? kept[i][k] : 0;
    }
    return sum / class_count(c);
}
