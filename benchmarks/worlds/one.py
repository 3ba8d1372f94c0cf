def test_one(tmp_path):
    assert tmp_path
