"""Names that the makers of models and the runs of clients share."""

#: Architectures of rapidocr's own torch engine, by what they do.
RAPIDOCR = {
    "det": "ch_PP-OCRv4_det_mobile",
    "cls": "ch_ppocr_mobile_v2.0_cls_mobile",
    "rec": "en_PP-OCRv4_rec_mobile",
}
