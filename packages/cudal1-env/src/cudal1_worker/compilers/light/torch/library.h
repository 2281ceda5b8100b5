// Stands for torch's header of this name: a text that registers operators is compiled with torch's own.
#pragma once
