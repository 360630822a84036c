"""Protobuf messages declared in a few lines: for formats whose generated classes no package that we need brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_KINDS: Final = {
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "string": FieldDescriptorProto.TYPE_STRING,
}


def declare(package: str, messages: Mapping[str, str]) -> dict[str, type[Message]]:
    """Classes of messages, in a descriptor pool of their own.

    `messages` maps names to fields `kind name=number, *kind name=number`; `*` is repeated, a kind that is no scalar
    names another of the messages. Fields are as in proto3.
    """
    file = FileDescriptorProto(name=f"lake/{package}.proto", package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for declaration in fields.split(", "):
            kind, _, rest = declaration.partition(" ")
            name, _, number = rest.partition("=")
            field = message.field.add(name=name, number=int(number))
            field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            field.type = _KINDS.get(kind, FieldDescriptorProto.TYPE_MESSAGE)
            if kind not in _KINDS:
                field.type_name = f".{package}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
