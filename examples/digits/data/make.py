"""Writes digits.bin.gz from the digits.csv.gz that scikit-learn ships.

    pip download scikit-learn --no-deps && unzip -j scikit_learn-*.whl '*/digits.csv.gz'
    python make.py digits.csv.gz digits.bin.gz
"""

import gzip
import struct
import sys


def main(source, target):
    rows = []
    with gzip.open(source, "rt") as lines:
        for line in lines:
            *pixels, label = (int(float(value)) for value in line.split(","))
            assert len(pixels) == 64 and max(pixels) <= 16 and 0 <= label <= 9, line
            rows.append(bytes([label, *pixels]))
    content = b"DIGITS01" + struct.pack("<I", len(rows)) + b"".join(rows)
    with open(target, "wb") as file:
        # Without a name and a time, so that the same content gives the same file.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as gz:
            gz.write(content)


main(*sys.argv[1:])
