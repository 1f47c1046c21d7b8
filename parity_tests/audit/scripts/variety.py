"""Writes in the many ways that Python has."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

os.makedirs("a/b")
Path("a/text").write_text("één\n" * 3)
with open("a/text", "a", encoding="utf-8") as file:
    file.write("more")
with open("a/text", "r+b") as file:
    file.seek(2)
    file.write(b"XX")
    file.truncate(9)
with open("a/lines", "w", buffering=1) as file:
    for i in range(3):
        file.write(f"{i}\n")
with open("a/raw", "xb", buffering=0) as file:
    file.write(b"raw")
descriptor = os.open("a/low", os.O_RDWR | os.O_CREAT, 0o644)
os.write(descriptor, b"0123456789")
os.pwrite(descriptor, b"--", 4)
os.ftruncate(descriptor, 8)
os.fsync(descriptor)
os.close(descriptor)
with tempfile.NamedTemporaryFile("wb", dir="a", prefix="named", delete=False) as file:
    file.write(b"temporary")
os.rename(file.name, "a/renamed")
number, path = tempfile.mkstemp(dir="a/b")
with os.fdopen(number, "wb") as file:
    file.write(b"by number" * 2000)
os.replace(path, "a/b/number")
shutil.copy("a/b/number", "a/copied")
shutil.copytree("a/b", "c")
shutil.move("c", "moved")
with tempfile.TemporaryDirectory() as outside:
    Path(outside, "file").write_bytes(b"from elsewhere")
    shutil.move(os.path.join(outside, "file"), "a/elsewhere")
np.save("a/array.npy", np.arange(300.0))
np.savez("a/arrays.npz", x=np.arange(3), y=np.zeros(2))
np.arange(4).tofile("a/array.bin")
mapped = np.memmap("a/mapped", dtype="u1", mode="w+", shape=(16,))
mapped[:] = 7
mapped.flush()
del mapped
os.link("a/raw", "a/hard")
os.symlink("raw", "a/soft")
os.unlink("a/low")
os.truncate("a/copied", 5)
os.mkdir("gone")
os.mkdir("gone/deep")
Path("gone/deep/file").touch()
shutil.rmtree("gone")
os.system("printf child > a/child")
