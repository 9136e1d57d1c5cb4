"""A client of Millrace; `generated` is made of its OpenAPI document by `make clients`."""
