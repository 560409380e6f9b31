"""What no message may hold, whatever it asks for: U+0000 in a string, a value that an enum does not have."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnitude_service.server import bounds


def refuse_malformed(message: Message, path: str) -> None:
    """Raises for the first string that holds U+0000, and for the first enum value that the contract does not have."""
    for field, value in message.ListFields():
        where = f"{path}{field.name}"
        if field.type == FieldDescriptor.TYPE_ENUM:
            if field.enum_type is not None and value not in field.enum_type.values_by_number:
                names = ", ".join(field.enum_type.values_by_name)
                bounds.refuse(where, value, f"a value of {field.enum_type.name}", f"Use one of {names}.")
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        elif not field.is_repeated:
            refuse_malformed_value(value, where)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                refuse_malformed_value(key, f"{where}[{key!r}]")
                refuse_malformed_value(value[key], f"{where}[{key!r}]")
        else:
            for index, entry in enumerate(value):
                refuse_malformed_value(entry, f"{where}[{index}]")


def refuse_malformed_value(value: object, path: str) -> None:
    """The same for one value."""
    if isinstance(value, Message):
        refuse_malformed(value, f"{path}.")
    elif isinstance(value, str) and (index := value.find("\0")) >= 0:
        bounds.refuse(path, f"holding U+0000 at character {index}", "without it", "Remove the character.")
