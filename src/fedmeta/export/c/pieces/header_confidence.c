/* How probably the class of an answer is right, and whether it should rather not be given, as
   counted on nodes that WHOM. */
#define FM_THRESHOLD THRESHOLD /* of the lead of the best class over the next */
float fm_confidence(const float *output);
int fm_abstain(const float *output);
